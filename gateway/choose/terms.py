"""A price taken apart: what of its seconds is waiting, computing, moving blocks and everything else.

For people who ask; `price.weigh` itself only adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.choose.price import confidence, weigh
from gateway.choose.types import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class Terms:
    """One holder's price for one request. credit_tokens: exact; confidence: how far they count in `prefill_s`, 0..1.

    price_s is the sum of the other seconds: wait_s until its prefill begins, prefill_s of what is not cached, moving_s to bring
    cached blocks to the device, drag_s for the request itself and the sequences that decode there.
    """

    credit_tokens: int
    confidence: float
    wait_s: float
    prefill_s: float
    moving_s: float
    drag_s: float
    price_s: float


def terms(request: RequestView, fleet: FleetView) -> dict[int, Terms]:
    """The terms of every eligible holder, by holder number."""
    prices = weigh(request, fleet)
    found: dict[int, Terms] = {}
    for holder, credit, price_s in zip(prices.holders, prices.credit, prices.prices_s, strict=True):
        guessed = credit > 0 and bool(request.match.guessed[holder])
        believed = confidence(fleet, holder, guessed)
        wait_s, drag_s = fleet.wait_s[holder], fleet.drag_s[holder]
        prefill_s = (request.tokens - believed * credit) / fleet.prefill_rate[holder]
        moving_s = price_s - wait_s - drag_s - prefill_s  # what is left of the price, so that the terms always add up
        found[holder] = Terms(credit, believed, wait_s, prefill_s, moving_s if moving_s > 1e-9 else 0.0, drag_s, price_s)
    return found
