"""Policies that keep what belongs together on one holder: by what it holds, by a hash of the prefix, by the session."""

from __future__ import annotations

import math
from hashlib import blake2b

from gateway.choose.cost import Cost
from gateway.choose.plain import LeastLoaded, by_policy
from gateway.choose.prefix import rendezvous
from gateway.choose.price import reason_of, unpriced
from gateway.choose.types import Decision, FleetView, NoEligible, RequestView

# A holder is too loaded to get more by its hash when it is above both: the share keeps a busy fleet even, the slack keeps an idle
# one from moving what is warm over a request or two.
LOAD_SHARE = 1.25
LOAD_SLACK = 8


class KvAware:
    """The longest credit among holders that are not too loaded, then the least loaded, then the rendezvous hash of the prefix.

    Credit counts in quarters of the prompt: every chat shares its first blocks, and they must not draw all chats to one holder.
    """

    name = "kv_aware"

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        most = _most_load(prices.holders, fleet)
        quarter = max(1, request.tokens) / 4

        def rank(place: int) -> tuple[float, int, int, int]:
            holder = prices.holders[place]
            order = rendezvous(fleet.order[holder], request.prefix_hash)
            return -(prices.credit[place] // quarter), fleet.in_flight[holder], fleet.queued_tokens[holder], -order

        at = min((place for place, holder in enumerate(prices.holders) if fleet.in_flight[holder] < most), key=rank)
        credit = prices.credit[at]
        reason = reason_of(request, credit, max(prices.credit))
        return Decision(prices.holders[at], reason, math.nan, credit, prices.candidates())


class PrefixHash:
    """The first in the rendezvous order of the prefix that is not too loaded (Thaler 1998; bounded loads: Mirrokni 2016).

    Without a prefix to hash: the least loaded.
    """

    name = "prefix_hash"

    def __init__(self) -> None:
        self._otherwise = LeastLoaded()

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if not request.tokens:
            return self._otherwise.choose(request, fleet, now)
        return _hashed(request, fleet, request.prefix_hash)


class Session:
    """The first in the rendezvous order of the session's name that is not too loaded; without a session as `cost`."""

    name = "session"

    def __init__(self) -> None:
        self._otherwise = Cost()

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if not request.session:
            return self._otherwise.choose(request, fleet, now)
        return _hashed(request, fleet, session_hash(request.session))


def session_hash(session: str) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _hashed(request: RequestView, fleet: FleetView, prefix: int) -> Decision:
    prices = unpriced(request, fleet)
    most = _most_load(prices.holders, fleet)
    free = [holder for holder in prices.holders if fleet.in_flight[holder] < most]
    return by_policy(max(free, key=lambda holder: (rendezvous(fleet.order[holder], prefix), -holder)), prices)


def _most_load(holders: list[int], fleet: FleetView) -> float:
    """So many open requests are too many for one more; never for all of them. Raises NoEligible where there is no holder."""
    if not holders:
        raise NoEligible
    mean = (sum(fleet.in_flight[holder] for holder in holders) + 1) / len(holders)
    return max(mean * LOAD_SHARE, mean + LOAD_SLACK)
