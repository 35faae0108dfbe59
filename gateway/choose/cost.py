"""The policy `cost`: the least price in seconds."""

from __future__ import annotations

from gateway.choose.many import choose_of_many
from gateway.choose.prefix import rendezvous
from gateway.choose.price import Prices, bound_s, reason_of, weigh
from gateway.choose.types import Decision, FleetView, NoEligible, RequestView

MANY = 32  # holders from which on arrays are faster than loops


class Cost:
    """The least price in seconds.

    Prices are equal when within 10 % plus 2 ms of the least. Among equals the holder that has more of the prompt, in quarters,
    saves the fleet work; then the least loaded; then the rendezvous hash of the prefix. More load on a holder never makes it
    chosen: the band depends on the least price only, and the order inside it on each holder alone.
    """

    name = "cost"

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`. Costs 8 us for 8 holders, some 35 for 256 and 50 for 1,024."""
        if len(fleet.eligible) >= MANY:
            return choose_of_many(request, fleet)
        prices = weigh(request, fleet)
        if not prices.holders:
            raise NoEligible
        at = _best(prices, request, fleet)
        credit = prices.credit[at]
        reason = reason_of(request, credit, max(prices.credit))
        return Decision(prices.holders[at], reason, prices.prices_s[at], credit, prices.candidates())


def _best(prices: Prices, request: RequestView, fleet: FleetView) -> int:
    """The place of the chosen one in `prices`."""
    bound = bound_s(min(prices.prices_s))
    quarter = max(1, request.tokens) / 4
    least: tuple[float, int, int] | None = None
    equal: list[int] = []
    for place, price_s in enumerate(prices.prices_s):
        if price_s > bound:
            continue
        holder = prices.holders[place]
        rank = -(prices.credit[place] // quarter), fleet.in_flight[holder], fleet.queued_tokens[holder]
        if least is None or rank < least:
            least, equal = rank, [place]
        elif rank == least:
            equal.append(place)
    if len(equal) == 1:
        return equal[0]
    return max(equal, key=lambda place: rendezvous(fleet.order[prices.holders[place]], request.prefix_hash))
