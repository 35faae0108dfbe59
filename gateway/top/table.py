"""A frame as a table for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.top.frame import Row

_LEFT = ("replica", "state", "view", "reasons")
_COLUMNS = (
    "replica",
    "state",
    "open",
    "waiting tok",
    "decoding",
    "req/s",
    "out tok/s",
    "expected",
    "cached",
    "trust",
    "view",
    "TTFT p50",
    "p99",
    "failed",
    "reasons",
)


def screen(frame: Row) -> RenderableType:
    """A line about the gateway, a row a rank, and the total."""
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in frame["ranks"]:
        name = row["replica"] + (f"/{row['rank']}" if row["rank"] else "")
        table.add_row(name, _state(row["state"]), *_cells(row, f"{row['trust']:.2f}", row["freshness"]))
    table.add_row("all", "", *_cells(frame["total"], "", ""), style="bold")
    head = f"policy {frame['policy']}, tokenizer {frame['tokenizer']}, requests of the last {frame['window_s']:.0f} s"
    return Group(Text(head), Text(""), table)


def _cells(row: Row, trust: str, view: str) -> list[str]:
    """From the third column on."""
    return [
        str(row["in_flight"]),
        f"{row['queued_tokens']:,}",
        str(row["decoding"]),
        f"{row['requests_per_s']:.1f}",
        f"{row['output_tokens_per_s']:,.0f}",
        _share(row["predicted_share"]),
        _share(row["realised_share"]),
        trust,
        view,
        _milliseconds(row["ttft_p50_s"]),
        _milliseconds(row["ttft_p99_s"]),
        _share(row["failed_share"]),
        " ".join(f"{reason} {share:.0%}" for reason, share in row["reasons"].items()),
    ]


def _state(state: str) -> Text:
    return Text(state, style="" if state == "up" else "bold red")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.0f} ms"
