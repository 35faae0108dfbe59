"""A data plane on loopback with a real fleet and placer behind it, wired as production wires them; engines are fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from events.types import Freshness
from gateway.choose.policies import policy_named
from gateway.choose.rates import Rates
from gateway.config import Settings
from gateway.fleet import Address, Fleet
from gateway.guards import Guards
from gateway.place import FleetPlacer
from gateway.plane import DataPlane
from gateway.prompt import PromptTokenizer
from gateway.protect import protect
from gateway.request import TrafficCounts
from radix.index import Index
from tests.fakes.dataplane import settings


@dataclass
class FleetPlane:
    """What serves."""

    plane: DataPlane
    port: int
    fleet: Fleet
    placer: FleetPlacer
    counts: TrafficCounts

    @property
    def loads(self) -> list[tuple[int, int, int]]:
        """(open, queued tokens, decoding) of each holder."""
        view = self.fleet.view
        return [(view.in_flight[h], view.queued_tokens[h], view.decode_load[h]) for h in self.fleet.by_holder]

    async def until(self, condition: object) -> None:
        """Wait for a condition, a function without arguments."""
        assert callable(condition)
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)

    async def quiet(self) -> None:
        """Wait until nothing is open any more."""
        await self.until(lambda: not (self.plane.open_exchanges or self.counts.open_connections or self.plane.desk.waiting))


@asynccontextmanager
async def fleet_plane(
    ports: Sequence[int],
    *,
    given: Settings | None = None,
    policy: str = "least_loaded",
    tokenizer: PromptTokenizer | None = None,
) -> AsyncIterator[FleetPlane]:
    """Start one before engines at these ports, which all serve model 'm'; serve; close."""
    given = given or settings()
    index = Index()
    fleet = Fleet(index, Rates())
    guards = Guards(fleet, given.resilience)
    placer = FleetPlacer(fleet, index, policy_named(policy), guess_ttl_s=10.0, receipts=2000, guards=guards)
    counts = TrafficCounts()
    ttft = placer.counts.ttft
    plane = DataPlane(given, placer, lambda: tokenizer, None, counts, models=fleet.cards, ttft=ttft)
    for number, port in enumerate(ports):
        replica = fleet.add(f"r{number}", Address.parse(f"http://127.0.0.1:{port}"), dialect="openai")
        fleet.learn_models(replica, ("m",))
        fleet.view.freshness[replica.holders[0]] = Freshness.LIVE
    protect(fleet, placer, plane, given.admission)
    port = await plane.start("127.0.0.1", 0)
    try:
        yield FleetPlane(plane, port, fleet, placer, counts)
    finally:
        plane.close()
        await asyncio.sleep(0.01)  # connections take a turn of the loop to close
