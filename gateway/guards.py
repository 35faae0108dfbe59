"""Which replicas are left alone for a while because of how they treated requests, and which are still warming up.

Breakers and outliers set `Replica.ejected`; `Fleet` takes that out of the view. Requests report here what became of them; `tick`
does what is due. All of it is told in plain numbers: no clock here, the caller passes the time.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.breaker import Breaker, State
from gateway.config import Resilience
from gateway.fleet import Fleet, Replica
from gateway.outliers import BUCKETS, Bounds, Window, how_many_more, outliers

log = logging.getLogger(__name__)

CAUSES = ("breaker", "failures", "slow")
_POLITE = (429, 503)  # 'full', which is no failure (FC-31)
_WARM_FROM = 0.1  # of its share, at first
_FORGIVEN_AFTER = 4  # times its last ejection, after which an outlier begins anew


@dataclass(slots=True)
class _Guard:
    breaker: Breaker
    window: Window = field(default_factory=Window)
    back_at: float = 0.0  # of an outlier
    ejections: int = 0  # in a row, as an outlier


class Guards:
    """One per gateway process."""

    def __init__(self, fleet: Fleet, settings: Resilience) -> None:
        self._fleet = fleet
        self._settings = settings
        self._guards: dict[Replica, _Guard] = {}
        self._bucket_s = settings.outliers.window_s / BUCKETS
        self._turned_at = 0.0
        self._bounds = Bounds(settings.outliers.least_requests, settings.outliers.failure_share, settings.outliers.times)
        self.warming: dict[Replica, float] = {}  # since when
        self.ejections: Counter[tuple[str, str]] = Counter()  # (replica, cause)

    # --- what requests report ---

    def trial(self, replica: Replica) -> None:
        """A request is sent to a replica on trial: no other one until it is decided."""
        self._of(replica).breaker.try_out()
        replica.on_trial = False
        self._set(replica, "breaker")

    def undecided(self, replica: Replica) -> None:
        """The request on trial ended without a word of the replica."""
        if self._of(replica).breaker.undecided():
            self._offer_trial(replica)

    def answered(self, replica: Replica, status: int, now: float) -> None:
        """The head of an answer came. Costs half a microsecond."""
        if status in _POLITE:
            self.undecided(replica)
        elif status >= 500:
            self.failed(replica, now)
        else:
            guard = self._of(replica)
            guard.window.requests += 1
            if guard.breaker.succeeded():
                self._set(replica, None)
                log.info("breaker closed replica=%s", replica.name)

    def failed(self, replica: Replica, now: float) -> None:
        """It could not be reached, died before it answered, answered with an error of its own or not at all."""
        guard = self._of(replica)
        guard.window.requests += 1
        guard.window.failures += 1
        if guard.breaker.failed(now):
            self.ejections[replica.name, "breaker"] += 1
            self._set(replica, "breaker")
            log.warning("breaker open replica=%s for_s=%g", replica.name, guard.breaker.until - now)

    def cut(self, replica: Replica) -> None:
        """It broke an answer off: the request counted when its head came."""
        self._of(replica).window.failures += 1

    def first_byte(self, replica: Replica, ttft_s: float, tokens: int) -> None:
        """A stream began. tokens: uncached, its own and those queued before it."""
        self._of(replica).window.first_byte(ttft_s, tokens)

    # --- time ---

    def joined(self, replica: Replica, now: float) -> None:
        """A replica may be chosen that could not be: its cache is cold, and so may be its process."""
        if self._settings.slow_start_s is not None:
            self.warming[replica] = now

    def tick(self, now: float) -> None:
        """Offer trials, take outliers back, eject new ones. Some microseconds per replica."""
        for replica, guard in self._guards.items():
            if guard.breaker.look(now):
                self._offer_trial(replica)
            elif replica.ejected in ("failures", "slow") and now >= guard.back_at:
                guard.window.clear()
                self._set(replica, None)
                log.info("outlier back replica=%s", replica.name)
        for replica, since in list(self.warming.items()):
            if now >= since + (self._settings.slow_start_s or 0.0):
                del self.warming[replica]
        if now - self._turned_at >= self._bucket_s:
            self._eject_outliers(now)
            self._turned_at = now
            for guard in self._guards.values():
                guard.window.turn()

    def forget(self, replica: Replica) -> None:
        """It left the fleet."""
        self._guards.pop(replica, None)
        self.warming.pop(replica, None)
        for cause in CAUSES:
            self.ejections.pop((replica.name, cause), None)

    def share(self, replica: Replica, now: float) -> float:
        """What part of a usual load a replica may have by now, 0..1."""
        since, slow_start_s = self.warming.get(replica), self._settings.slow_start_s
        if since is None or slow_start_s is None:
            return 1.0
        return min(1.0, _WARM_FROM + (1 - _WARM_FROM) * max(0.0, now - since) / slow_start_s)

    def state(self, replica: Replica) -> State:
        """Of its breaker."""
        guard = self._guards.get(replica)
        return guard.breaker.state if guard is not None else State.CLOSED

    # --- own parts ---

    def _of(self, replica: Replica) -> _Guard:
        guard = self._guards.get(replica)
        if guard is None:
            settings = self._settings.breaker
            guard = _Guard(Breaker(settings.failures, settings.open_s, settings.open_most_s))
            if self._fleet.replicas.get(replica.name) is replica:  # a late word of one that is gone is not kept
                self._guards[replica] = guard
        return guard

    def _offer_trial(self, replica: Replica) -> None:
        replica.on_trial = True
        self._set(replica, None)

    def _set(self, replica: Replica, cause: str | None) -> None:
        if replica.ejected != cause:
            replica.ejected = cause
            self._fleet.refresh(replica)

    def _eject_outliers(self, now: float) -> None:
        if not self._settings.outliers.enabled:
            return
        for like in self._alike():
            ejected = sum(replica.ejected is not None or not replica.healthy for replica in like)
            more = how_many_more(len(like), ejected, self._settings.outliers.share)
            by_name = {replica.name: replica for replica in like if replica.eligible and replica in self._guards}
            totals = {name: self._guards[replica].window.total() for name, replica in by_name.items()}
            for name, cause in list(outliers(totals, self._bounds).items())[:more]:
                self._eject(by_name[name], cause, now)

    def _eject(self, replica: Replica, cause: str, now: float) -> None:
        guard, settings = self._guards[replica], self._settings.outliers
        last_s = min(settings.eject_s * max(1, guard.ejections), settings.eject_most_s)
        if now - guard.back_at > _FORGIVEN_AFTER * last_s:
            guard.ejections = 0
        guard.ejections += 1
        for_s = min(settings.eject_s * guard.ejections, settings.eject_most_s)
        guard.back_at = now + for_s
        self.ejections[replica.name, cause] += 1
        self._set(replica, cause)
        log.warning("outlier ejected replica=%s cause=%s for_s=%g", replica.name, cause, for_s)

    def _alike(self) -> Iterator[list[Replica]]:
        """Replicas that serve the same models: times of others say nothing about theirs."""
        groups: defaultdict[tuple[str, ...], list[Replica]] = defaultdict(list)
        for replica in self._fleet.replicas.values():
            groups[tuple(sorted(replica.models))].append(replica)
        yield from groups.values()
