"""The policies: each looks at the request and the fleet, and answers with one eligible holder."""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.choose.prefix import rendezvous
from gateway.choose.price import Prices, unpriced, weigh
from gateway.choose.types import Decision, FleetView, NoEligible, Policy, RequestView
from gateway.errors import ConfigError

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
        reason = _reason(request, credit, max(prices.credit))
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


class RoundRobin:
    """Eligible holders in turn, in the order of their numbers."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        self._last = _next_after(self._last, prices.holders)
        return _by_policy(self._last, prices)


class LeastLoaded:
    """The fewest open requests, then the fewest queued tokens; equals take turns.

    Turns, not a hash of the prefix: this policy must not gain affinity by accident.
    """

    name = "least_loaded"

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        loads = [(fleet.in_flight[holder], fleet.queued_tokens[holder]) for holder in prices.holders]
        least = min(loads, default=None)
        equal = [holder for holder, load in zip(prices.holders, loads, strict=True) if load == least]
        self._last = _next_after(self._last, equal)
        return _by_policy(self._last, prices)


_POLICIES: dict[str, Callable[[], Policy]] = {policy.name: policy for policy in (Cost, RoundRobin, LeastLoaded)}
POLICY_NAMES = tuple(sorted(_POLICIES))


def policy_named(name: str) -> Policy:
    """A new policy of that name; raises ConfigError naming those there are."""
    try:
        return _POLICIES[name]()
    except KeyError:
        raise ConfigError(f"policy {name!r} is not one of {', '.join(POLICY_NAMES)}") from None


def _reason(request: RequestView, credit: int, best_credit: int) -> str:
    """Why `cost` chose: see `Decision`."""
    if not request.tokens:
        return "no_tokens"
    if not best_credit:
        return "load"
    return "credit" if credit == best_credit else "price"


def _next_after(last: int, holders: list[int]) -> int:
    """The first holder number above `last`, else the lowest; raises NoEligible for none."""
    if not holders:
        raise NoEligible
    return next((holder for holder in holders if holder > last), holders[0])


def _by_policy(holder: int, prices: Prices) -> Decision:
    """The decision for a holder that was not chosen for its price; the credit it happens to have is told all the same."""
    credit = prices.credit[prices.holders.index(holder)]
    return Decision(holder, "policy", math.nan, credit, prices.candidates())
