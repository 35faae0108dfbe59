"""JSON of several workers' control planes, put together; plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LOADS = ("in_flight", "queued_tokens", "decoding")

Row = dict[str, Any]


def replica_rows(of_workers: Sequence[Sequence[Row]]) -> list[Row]:
    """Replicas as the first worker sees them, with the loads of all added up."""
    rows = [{**row, "ranks": [dict(rank) for rank in row["ranks"]]} for row in of_workers[0]] if of_workers else []
    ranks = {(row["name"], rank["rank"]): rank for row in rows for rank in row["ranks"]}
    for others in of_workers[1:]:
        for row in others:
            for rank in row["ranks"]:
                if (mine := ranks.get((row["name"], rank["rank"]))) is not None:
                    for load in _LOADS:
                        mine[load] += rank[load]
    return rows


def receipt_rows(of_workers: Sequence[Sequence[Row]], limit: int) -> list[Row]:
    """The latest of all, newest first."""
    rows = [row for rows in of_workers for row in rows]
    return sorted(rows, key=lambda row: float(row["at"]), reverse=True)[:limit]


def index_row(of_workers: Sequence[Row]) -> Row:
    """The index as the first worker was told of it, with the guesses of all."""
    return {**of_workers[0], "guesses": sum(row["guesses"] for row in of_workers)} if of_workers else {}


def status_row(of_workers: Sequence[Row]) -> Row:
    """The first worker's status, with what is merged put in; the tokenizer counts as ready when it is in all of them."""
    if not of_workers:
        return {}
    states = {row["tokenizer"] for row in of_workers}
    return {
        **of_workers[0],
        "draining": any(row["draining"] for row in of_workers),
        "tokenizer": of_workers[0]["tokenizer"] if len(states) == 1 else "loading",
        "replicas": replica_rows([row["replicas"] for row in of_workers]),
        "index": index_row([row["index"] for row in of_workers]),
    }
