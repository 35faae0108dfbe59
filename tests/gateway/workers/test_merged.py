"""What the one control plane says of several workers."""

from __future__ import annotations

from typing import Any

from gateway.workers.merged import index_row, receipt_rows, replica_rows, status_row


def replica(name: str, *in_flight: int, healthy: bool = True) -> dict[str, Any]:
    """A replica's row with some ranks."""
    ranks = [
        {"rank": rank, "in_flight": load, "queued_tokens": 10 * load, "decoding": load, "trust": 0.5, "freshness": "live"}
        for rank, load in enumerate(in_flight)
    ]
    return {"name": name, "healthy": healthy, "ranks": ranks}


def status(tokenizer: str = "ready", *, draining: bool = False, guesses: int = 1, in_flight: int = 1) -> dict[str, Any]:
    return {
        "policy": "cost",
        "tokenizer": tokenizer,
        "draining": draining,
        "replicas": [replica("a", in_flight)],
        "index": {"blocks": 7, "guesses": guesses},
    }


def test_loads_add_up_and_nothing_else() -> None:
    merged = replica_rows([[replica("a", 1, 2), replica("b", 3)], [replica("a", 10, 20, 30)]])
    assert merged == [replica("a", 11, 22), replica("b", 3)]


def test_what_workers_said_is_left_as_it_was() -> None:
    first = [replica("a", 1)]
    replica_rows([first, [replica("a", 1)]])
    assert first == [replica("a", 1)]


def test_receipts_are_the_latest_of_all() -> None:
    rows = receipt_rows([[{"at": 5.0}, {"at": 1.0}], [{"at": 4.0}, {"at": 3.0}]], 3)
    assert [row["at"] for row in rows] == [5.0, 4.0, 3.0]


def test_guesses_add_up_and_the_tree_is_the_same() -> None:
    assert index_row([{"blocks": 7, "guesses": 1}, {"blocks": 7, "guesses": 4}]) == {"blocks": 7, "guesses": 5}


def test_a_status_is_ready_when_all_are() -> None:
    merged = status_row([status(), status(guesses=2, in_flight=4)])
    assert (merged["tokenizer"], merged["draining"], merged["index"]["guesses"]) == ("ready", False, 3)
    assert merged["replicas"] == [replica("a", 5)]
    assert status_row([status(), status("loading")])["tokenizer"] == "loading"
    assert status_row([status(), status(draining=True)])["draining"]


def test_without_workers_there_is_nothing_to_say() -> None:
    assert (status_row([]), index_row([]), replica_rows([])) == ({}, {}, [])
