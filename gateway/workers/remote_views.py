"""The event streams as a worker has them: followed by the index process, which tells how fresh each view is."""

from __future__ import annotations

from collections.abc import Iterator

from events.types import Freshness
from gateway.config import ReplicaSettings
from gateway.fleet import NO_LOAD, Fleet, Load, Replica
from gateway.health import Facts
from gateway.views import ranks_told
from gateway.workers.wire import Notes, RankLoad, StreamState


class RemoteViews:
    """Copies freshness to where policies read it, and collects what streams have to know of requests.

    While nothing is heard from the index process, what was fresh counts as a gap that is being healed.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._states: dict[tuple[str, int], StreamState] = {}
        self._stale = False
        self._answered: dict[tuple[str, int], int] = {}
        self._faults: set[str] = set()
        self._loads: list[RankLoad] | None = None  # as they were told last; None: to nobody

    def learn(self, states: list[StreamState]) -> None:
        """What the index process follows now."""
        self._stale = False
        self._states = {(state.replica, state.rank): state for state in states}
        self._show()

    def expire(self, *, gone: bool) -> None:
        """Nothing is heard from the index process; gone: what it told last is too old to be used."""
        self._stale = True
        if gone:
            self._states = {}
        self._show()

    def heard(self) -> None:
        """The index process lives after all."""
        if self._stale:
            self._stale = False
            self._show()

    def notes(self) -> Notes | None:
        """What has to be told since the last call; None when nothing. Costs O(holders)."""
        loads = self._own_loads()
        same = loads == self._loads
        if same and not self._answered and not self._faults:
            return None
        answered = [(*owner, tokens) for owner, tokens in self._answered.items()]
        notes = Notes(answered, sorted(self._faults), None if same else loads)
        self._answered, self._faults, self._loads = {}, set(), loads
        return notes

    def nobody_listens(self) -> None:
        """Whoever is told next knows nothing; and what others do is not known either."""
        self._loads = None
        self._fleet.set_elsewhere({})

    def share(self, elsewhere: list[RankLoad]) -> None:
        """What other workers have given to replicas counts like our own."""
        loads: dict[int, Load] = {}
        for load in elsewhere:
            replica = self._fleet.replicas.get(load.replica)
            if replica is not None and load.rank < len(replica.holders):
                loads[replica.holders[load.rank]] = Load(load.in_flight, load.queued_tokens, load.decoding)
        self._fleet.set_elsewhere(loads)

    def streams(self) -> Iterator[tuple[str, int, StreamState]]:
        """(replica, rank, stream) of all that are followed."""
        for (replica, rank), state in self._states.items():
            if replica in self._fleet.replicas:
                yield replica, rank, state

    def stream(self, holder: int) -> StreamState | None:
        """The stream that feeds a holder; None where nothing is announced."""
        replica, rank = self._fleet.by_holder[holder]
        return self._states.get((replica.name, rank))

    async def follow(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        """A replica is up: it may have other ranks than before."""
        if (ranks := ranks_told(settings, facts)) is not None:
            self._fleet.set_ranks(replica, ranks)
        self._show()

    def unheard(self, replica: Replica) -> bool:
        """Streams are the index process's matter."""
        return False

    def suspect(self, replica: Replica) -> None:
        """The process behind it is gone, as this worker sees it; the index process is asked to look."""
        self.fault(replica)

    def emptied(self, replica: Replica) -> None:
        """A replica sleeps; the index process sees that for itself."""

    def refresh(self) -> None:
        """What changes is told."""

    def fault(self, replica: Replica) -> None:
        """Traffic met a dead connection."""
        self._faults.add(replica.name)

    def answered(self, holder: int, uncached_tokens: int) -> None:
        """A request was answered whose prompt should have stored new blocks (FC-05)."""
        if uncached_tokens and holder in self._fleet.by_holder:
            replica, rank = self._fleet.by_holder[holder]
            key = (replica.name, rank)
            self._answered[key] = max(self._answered.get(key, 0), uncached_tokens)

    async def unfollow(self, replica: Replica) -> None:
        """Forget one replica."""
        for rank in range(len(replica.holders)):
            self._states.pop((replica.name, rank), None)

    async def stop(self) -> None:
        """Nothing runs here."""

    def _own_loads(self) -> list[RankLoad]:
        found = []
        for holder, (replica, rank) in self._fleet.by_holder.items():
            load = self._fleet.own_load(holder)
            if load != NO_LOAD:
                found.append(RankLoad(replica.name, rank, *load))
        return found

    def _show(self) -> None:
        freshness = self._fleet.view.freshness
        for holder, (replica, rank) in self._fleet.by_holder.items():
            state = self._states.get((replica.name, rank))
            told = Freshness(state.freshness) if state is not None else Freshness.COLD
            freshness[holder] = Freshness.GAP if self._stale and told is not Freshness.COLD else told
        for replica in self._fleet.replicas.values():
            self._fleet.refresh(replica)
