"""What the demo shows: a table per policy, then both side by side; or one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.demo.play import Turn

_WHY = {
    "credit": "holds it",
    "price": "cheaper",
    "load": "least load",
    "policy": "its turn",
    "no_tokens": "no tokens",
}


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures of one policy. Shares are 0..1; the median is None where there was no second turn."""
    followups = [turn.ttft_s * 1000 for turn in turns if turn.number > 1]
    prompt = sum(turn.prompt_tokens for turn in turns)
    return {
        "requests": len(turns),
        "followup_ttft_ms_p50": round(median(followups), 1) if followups else None,
        "predicted_exact_share": round(sum(t.predicted_tokens == t.cached_tokens for t in turns) / len(turns), 4),
        "cached_token_share": round(sum(turn.cached_tokens for turn in turns) / prompt, 4),
        "turns": [asdict(turn) for turn in turns],
    }


def show_policy(console: Console, policy: str, turns: Sequence[Turn]) -> None:
    """One row per turn."""
    table = Table(title=f"Policy {policy} (counts in tokens)", title_justify="left", padding=(0, 1))
    for name in ("turn", "user", "replica", "why"):
        table.add_column(name, no_wrap=True)
    for name in ("prompt", "predicted", "cached", "first token"):
        table.add_column(name, justify="right", no_wrap=True)
    for turn in turns:
        exact = turn.predicted_tokens == turn.cached_tokens
        table.add_row(
            str(turn.number),
            turn.user,
            turn.replica,
            _WHY.get(turn.reason, turn.reason),
            str(turn.prompt_tokens),
            str(turn.predicted_tokens),
            f"[{'green' if exact else 'yellow'}]{turn.cached_tokens}[/]",
            f"{turn.ttft_s * 1000:.0f} ms",
            end_section=turn is turns[-1] or turns[turns.index(turn) + 1].number != turn.number,
        )
    console.print(table)


def show_side_by_side(console: Console, played: Mapping[str, Sequence[Turn]]) -> None:
    """The policies against each other, and the answer in one sentence."""
    figures = {policy: summary(turns) for policy, turns in played.items()}
    table = Table(title="Side by side", title_justify="left")
    table.add_column("")
    for policy in figures:
        table.add_column(policy, justify="right")
    table.add_row("requests", *(str(f["requests"]) for f in figures.values()))
    table.add_row("median first token, turns 2 and later", *(f"{f['followup_ttft_ms_p50']:.0f} ms" for f in figures.values()))
    table.add_row("prompt tokens found in a cache", *(f"{f['cached_token_share']:.0%}" for f in figures.values()))
    table.add_row("predictions that were exact", *(f"{f['predicted_exact_share']:.0%}" for f in figures.values()))
    console.print(table)
    ratio = figures["round_robin"]["followup_ttft_ms_p50"] / figures["cost"]["followup_ttft_ms_p50"]
    console.print(f"Sent to the replica that holds it, a follow-up's first token came [bold]{ratio:.1f}x[/] sooner.")
