"""What a request would cost on each holder, in seconds until its first byte.

`price = wait + (tokens - confidence * credit) / prefill_rate + tier_load + drag`. Wait and drag are the holder's load, the
second term is the prefill, the third is moving cached blocks that are not on the device. Credit is what the index believes;
confidence is how far we believe the index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from events.types import Freshness
from gateway.choose.types import Candidate, FleetView, RequestView

DEFAULT_BLOCK_TOKENS = 16  # of a holder whose block size is not known yet; the default of vLLM and of our replicas

_LIVE = Freshness.LIVE

# How far credit counts by what is known of the event stream. PARTIAL: what we heard is true, but removals may have been missed.
FRESHNESS_CONFIDENCE = {
    _LIVE: 1.0,
    Freshness.GAP: 0.9,
    Freshness.PARTIAL: 0.8,
    Freshness.COLD: 0.7,
    Freshness.SILENT: 0.5,
}
GUESS_CONFIDENCE = 0.97  # our own choice, seconds old, whatever the stream says; only a failed request makes it wrong

# Prices this close are equal: the estimates are not better than that, and spreading equals costs nothing.
TOLERANCE_SHARE = 0.10
TOLERANCE_S = 0.002

# Seconds per token to bring cached blocks to the device, by tier: device, host, disk, shared. About 128 KiB per token over
# 20, 3 and 1 GB/s, the order of magnitude of an 8 B model's keys and values over PCIe, NVMe and the network.
TIER_LOAD_S = (0.0, 6.5e-6, 4.4e-5, 1.3e-4)


@dataclass(slots=True)
class Prices:
    """The eligible holders as they were weighed: three parallel lists, ascending by holder number.

    credit: tokens, exact: what the engine will report as cached if the view is true.
    """

    holders: list[int]
    credit: list[int]
    prices_s: list[float]

    def candidates(self) -> Candidates:
        """The same as a sequence of `Candidate`, made only when somebody looks."""
        return Candidates(self)


class Candidates(Sequence[Candidate]):
    """Reads `Prices` as a sequence."""

    __slots__ = ("_prices",)

    def __init__(self, prices: Prices) -> None:
        self._prices = prices

    def __len__(self) -> int:
        return len(self._prices.holders)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        prices = self._prices
        return Candidate(prices.holders[index], prices.credit[index], prices.prices_s[index])

    def __iter__(self) -> Iterator[Candidate]:
        prices = self._prices
        return map(Candidate, prices.holders, prices.credit, prices.prices_s)


def credit_tokens(depth: int, tokens: int, block_tokens: int) -> int:
    """Tokens a holder with `depth` matched ones need not compute of a prompt of `tokens`.

    Whole blocks, and never the last token: engines compute at least one, so a prompt that is cached to its end still misses
    its last block. Exact, unlike the price: this is what the engine's report is compared with.
    """
    usable = min(depth, tokens - 1)
    return usable - usable % (block_tokens or DEFAULT_BLOCK_TOKENS) if usable > 0 else 0


def confidence(fleet: FleetView, holder: int, guessed: bool) -> float:
    """How far credit of this holder counts in its price, 0..1."""
    if guessed:
        return fleet.trust[holder] * GUESS_CONFIDENCE
    freshness = fleet.freshness[holder]
    # Hashing an Enum member is a Python call; nearly every holder is live.
    return fleet.trust[holder] if freshness is _LIVE else fleet.trust[holder] * FRESHNESS_CONFIDENCE[freshness]


def bound_s(least_s: float) -> float:
    """Up to which price all are equal to the least."""
    return least_s * (1 + TOLERANCE_SHARE) + TOLERANCE_S


def reason_of(request: RequestView, credit: int, best_credit: int) -> str:
    """Why a policy that looks at credit chose: see `Decision`."""
    if not request.tokens:
        return "no_tokens"
    if not best_credit:
        return "load"
    return "credit" if credit == best_credit else "price"


def weigh(request: RequestView, fleet: FleetView) -> Prices:
    """Price every eligible holder, one after the other: 0.3 us for each, and twice as much again where it has credit."""
    tokens = request.tokens
    depth = _depths(request)
    known = len(depth)
    holders: list[int] = []
    credited: list[int] = []
    prices_s: list[float] = []
    columns = zip(fleet.eligible, fleet.wait_s, fleet.drag_s, fleet.prefill_rate, strict=True)
    for holder, (eligible, wait_s, drag_s, rate) in enumerate(columns):
        if not eligible:
            continue
        price_s = wait_s + drag_s
        credit = 0
        if holder < known and depth[holder][-1]:
            credit = credit_tokens(depth[holder][-1], tokens, fleet.block_tokens[holder])
            counted = credit * confidence(fleet, holder, bool(request.match.guessed[holder]))
            price_s += (tokens - counted) / rate + tier_load_s(depth[holder], credit)
        else:
            price_s += tokens / rate
        holders.append(holder)
        credited.append(credit)
        prices_s.append(price_s)
    return Prices(holders, credited, prices_s)


def unpriced(request: RequestView, fleet: FleetView) -> Prices:
    """The eligible holders with their credit, for policies that do not price; prices are NaN."""
    depth = _depths(request)
    holders = [holder for holder, eligible in enumerate(fleet.eligible) if eligible]
    credited = [
        credit_tokens(depth[holder][-1], request.tokens, fleet.block_tokens[holder]) if holder < len(depth) else 0
        for holder in holders
    ]
    return Prices(holders, credited, [math.nan] * len(holders))


def _depths(request: RequestView) -> list[list[int]]:
    """Matched tokens by holder and tier; none where the index could not answer in time."""
    match = request.match
    depths: list[list[int]] = match.depth.tolist() if match.known else []
    return depths


def tier_load_s(depth: list[int], credit: int) -> float:
    """Seconds to bring the part of the credit that is not on the device there. depth: per tier, rising."""
    if depth[0] >= credit:
        return 0.0
    total_s, reached = 0.0, depth[0]
    for tier in range(1, len(depth)):
        upto = min(depth[tier], credit)
        if upto > reached:
            total_s += (upto - reached) * TIER_LOAD_S[tier]
            reached = upto
    return total_s
