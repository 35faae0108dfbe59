"""The comparison as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from simulations.report.summary import Slo, Summary

# Two lines a heading, so that the table fits TABLE_WIDTH.
_COLUMNS = (
    "hit\nrate",
    "TTFT s\nmean",
    "TTFT s\np50",
    "TTFT s\np90",
    "TTFT s\np99",
    "TPOT ms\np50",
    "TPOT ms\np99",
    "good-\nput",
    "load\nmax/mean",
    "pre-\nfilling",
    "replayed\nreq/s",
)
TABLE_WIDTH = 124  # characters


def to_table(summaries: Sequence[Summary], wall_s: Sequence[float], slo: Slo, title: str) -> Table:
    """One row a policy; the best value of a column is bold. wall_s: seconds each replay took."""
    table = Table(title=title, box=SIMPLE_HEAD, caption=f"goodput: TTFT < {slo.ttft_s:g} s and TPOT < {slo.tpot_s * 1e3:g} ms")
    table.add_column("policy", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    best = _best(summaries)
    for summary, seconds in zip(summaries, wall_s, strict=True):
        shown = [_bold(text, value == best[column]) for column, (value, text) in enumerate(_cells(summary))]
        table.add_row(summary.policy, *shown, f"{summary.requests / seconds:,.0f}")
    return table


def _cells(summary: Summary) -> list[tuple[float, str]]:
    """(value to compare, text) of each column but the last; what is better when higher compares negated."""
    ttft, tpot = summary.ttft_s, summary.tpot_s
    return [
        (-summary.hit_rate, f"{summary.hit_rate:.1%}"),
        *((value, f"{value:.2f}") for value in (ttft.mean, ttft.p50, ttft.p90, ttft.p99)),
        *((value, f"{value * 1e3:.0f}") for value in (tpot.p50, tpot.p99)),
        (-summary.goodput, f"{summary.goodput:.3f}"),
        (summary.load_max_over_mean, f"{summary.load_max_over_mean:.2f}"),
        (summary.prefill_share, f"{summary.prefill_share:.0%}"),
    ]


def _best(summaries: Sequence[Summary]) -> list[float]:
    """The best value per column; none is best where there is nothing to compare with."""
    if len(summaries) < 2:
        return [float("nan")] * (len(_COLUMNS) - 1)
    return [min(value for value, _ in column) for column in zip(*map(_cells, summaries), strict=True)]


def _bold(text: str, bold: bool) -> str:
    return f"[bold]{text}[/bold]" if bold else text
