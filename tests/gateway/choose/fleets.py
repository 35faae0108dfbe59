"""Fleets and requests for the policies' tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from events.types import Freshness
from gateway.choose.types import FleetView, RequestView
from radix.match import EMPTY, TIERS, Match
from radix.namespace import Namespace

SPACE = Namespace("m")


def fleet_of(count: int, *, rate: float = 2_000.0, block_tokens: int = 16) -> FleetView:
    """`count` idle, healthy, live holders of the same speed."""
    return FleetView(
        wait_s=[0.0] * count,
        prefill_rate=[rate] * count,
        queued_tokens=[0] * count,
        decode_load=[0] * count,
        drag_s=[0.0] * count,
        in_flight=[0] * count,
        trust=[1.0] * count,
        freshness=[Freshness.LIVE] * count,
        eligible=[True] * count,
        order=[(number + 1) * 0x9E3779B97F4A7C15 % 2**64 for number in range(count)],
        names=[f"r{number}" for number in range(count)],
        block_tokens=[block_tokens] * count,
    )


def request_of(
    tokens: int, depth: Mapping[int, int | Sequence[int]] | None = None, *, guessed: Sequence[int] = (), prefix: int = 1
) -> RequestView:
    """A prompt of so many tokens, matched on holders to a depth: one number, or one per tier."""
    match = EMPTY
    if depth:
        matrix = np.zeros((max(depth) + 1, TIERS), np.int32)
        for holder, tokens_held in depth.items():
            matrix[holder] = tokens_held
        marks = np.zeros(len(matrix), np.bool_)
        marks[list(guessed)] = True
        match = Match(matrix, marks)
    return RequestView(tokens=tokens, namespace=SPACE, match=match, prefix_hash=prefix)


def queue(fleet: FleetView, holder: int, tokens: int) -> None:
    """One more open request of `tokens` uncached tokens waits on the holder."""
    fleet.in_flight[holder] += 1
    fleet.queued_tokens[holder] += tokens
    fleet.wait_s[holder] = fleet.queued_tokens[holder] / fleet.prefill_rate[holder]
