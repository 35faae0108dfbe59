"""The policy `cost`: the least price in seconds."""

from __future__ import annotations

from gateway.choose.prefix import rendezvous
from gateway.choose.price import Prices, weigh
from gateway.choose.types import Decision, FleetView, NoEligible, RequestView

# Prices this close are equal: the estimates are not better than that, and spreading equals costs nothing.
TOLERANCE_SHARE = 0.10
TOLERANCE_S = 0.002


class Cost:
    """The least price in seconds.

    Prices are equal when within 10 % plus 2 ms of the least. Among equals the holder that has more of the prompt, in quarters,
    saves the fleet work; then the least loaded; then the rendezvous hash of the prefix. More load on a holder never makes it
    chosen: the band depends on the least price only, and the order inside it on each holder alone.
    """

    name = "cost"

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = weigh(request, fleet)
        if not prices.holders:
            raise NoEligible
        at = self._best(prices, request, fleet)
        credit = prices.credit[at]
        reason = reason_of(request, credit, max(prices.credit))
        return Decision(prices.holders[at], reason, prices.prices_s[at], credit, prices.candidates())

    def _best(self, prices: Prices, request: RequestView, fleet: FleetView) -> int:
        """The place of the chosen one in `prices`."""
        least_s = min(prices.prices_s)
        bound_s = least_s * (1 + TOLERANCE_SHARE) + TOLERANCE_S
        equal = [place for place, price_s in enumerate(prices.prices_s) if price_s <= bound_s]
        if len(equal) == 1:
            return equal[0]
        quarter = max(1, request.tokens) / 4
        prefix = request.prefix_hash

        def rank(place: int) -> tuple[float, int, int, int]:
            holder = prices.holders[place]
            saved = prices.credit[place] // quarter
            return -saved, fleet.in_flight[holder], fleet.queued_tokens[holder], -rendezvous(fleet.order[holder], prefix)

        return min(equal, key=rank)


def reason_of(request: RequestView, credit: int, best_credit: int) -> str:
    """Why a policy that looks at credit chose: see `Decision`."""
    if not request.tokens:
        return "no_tokens"
    if not best_credit:
        return "load"
    return "credit" if credit == best_credit else "price"
