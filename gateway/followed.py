"""What a gateway process knows of its replicas' caches, whether it follows them itself or another process does it for several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from events.apply import Counts
from gateway.config import ReplicaSettings
from gateway.fleet import Fleet, Replica
from gateway.health import Facts
from radix.reading import ReadableIndex


class FollowedStream(Protocol):
    """One rank's stream."""

    @property
    def connected(self) -> bool:
        """There is a connection to its engine."""

    @property
    def counts(self) -> Counts:
        """What happened so far."""


class FollowedViews(Protocol):
    """The streams of all replicas."""

    def streams(self) -> Iterator[tuple[str, int, FollowedStream]]:
        """(replica, rank, stream) of all that are followed."""

    def stream(self, holder: int) -> FollowedStream | None:
        """The stream that feeds a holder; None where nothing is announced."""

    async def follow(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        """A replica is up and told this of itself."""

    def unheard(self, replica: Replica) -> bool:
        """A stream of its events has no connection now."""

    def suspect(self, replica: Replica) -> None:
        """The process behind it is gone."""

    def emptied(self, replica: Replica) -> None:
        """It dropped its caches and has not said so in its events."""

    def refresh(self) -> None:
        """Let policies see what changed without being told."""

    def answered(self, holder: int, uncached_tokens: int) -> None:
        """A request was answered whose prompt should have stored new blocks."""

    async def unfollow(self, replica: Replica) -> None:
        """Stop listening to one replica."""

    async def stop(self) -> None:
        """Stop all streams."""


class Knowledge(Protocol):
    """An index and what feeds it."""

    @property
    def index(self) -> ReadableIndex:
        """Who holds what."""

    def views(self, fleet: Fleet) -> FollowedViews:
        """The event streams; called once."""

    async def keep(self) -> None:
        """What has to run beside it, as long as the gateway or until it is done."""
