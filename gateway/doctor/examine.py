"""The doctor's round: gather the facts of every replica, run every check on them, and put the worst first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import aiohttp
import zmq.asyncio

from gateway.choose.policies import BY_HISTORY
from gateway.config import Settings
from gateway.doctor import checks, stream_checks
from gateway.doctor.gather import Gatherer
from gateway.doctor.probe import WholeTokenizer
from gateway.doctor.types import Diagnosis, Finding, House, Patient, Severity
from gateway.errors import GatewayError
from gateway.followed import FollowedViews
from gateway.health import HealthMonitor
from gateway.place import FleetPlacer
from radix.reading import ReadableIndex

_AT_ONCE = 16  # replicas looked at together
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


class Busy(GatewayError):
    """Another round is under way: probes are requests to engines, and one set of them at a time is enough."""


class Doctor:
    """Examines the fleet of a running gateway.

    announced: the index that events feed. tokenizer: None while there is none.
    """

    def __init__(
        self,
        settings: Settings,
        placer: FleetPlacer,
        views: FollowedViews,
        announced: ReadableIndex,
        health: HealthMonitor,
        session: aiohttp.ClientSession,
        tokenizer: Callable[[], WholeTokenizer | None],
    ) -> None:
        self._settings = settings
        self._placer = placer
        self._views = views
        self._announced = announced
        self._health = health
        self._session = session
        self._tokenizer = tokenizer
        self._running = False

    async def examine(self, *, probe: bool) -> Diagnosis:
        """One round over all replicas; raises Busy. probe: also send each replica a prompt of a few blocks, twice."""
        if self._running:
            raise Busy("another examination is under way")
        self._running = True
        context = zmq.asyncio.Context()
        try:
            patients = await self._patients(context, probe=probe)
        finally:
            context.destroy(linger=0)
            self._running = False
        house = self._house()
        found = [*stream_checks.fleet(patients, house)]
        for patient in patients:
            found.extend(_of(patient, house))
        found.sort(key=lambda finding: _ORDER[finding.severity])
        return Diagnosis(tuple(patient.name for patient in patients), tuple(found), probe)

    async def _patients(self, context: zmq.asyncio.Context, *, probe: bool) -> Sequence[Patient]:
        fleet, limit = self._placer.fleet, asyncio.Semaphore(_AT_ONCE)
        gatherer = Gatherer(fleet, self._views, self._announced, self._health, self._session, context)
        receipts, tokenizer = list(reversed(self._placer.receipts)), self._tokenizer()
        replicas = [replica for replica in fleet.replicas.values() if not replica.draining]

        async def one(place: int) -> Patient:
            async with limit:
                return await gatherer.patient(replicas[place], receipts, tokenizer, probe=probe)

        return await asyncio.gather(*(one(place) for place in range(len(replicas))))

    def _house(self) -> House:
        settings = self._settings
        loaded = self._tokenizer() is not None
        return House(
            policy=settings.policy,
            follows_events=settings.policy not in BY_HISTORY,
            tokenizer="ready" if loaded else ("loading" if settings.tokenizer else "none"),
            tokenizer_name=settings.tokenizer,
            evicted=self._announced.stats().evicted,
            index_mib=settings.index_mib,
        )


def _of(patient: Patient, house: House) -> Iterator[Finding]:
    """All checks of one replica; one that cannot be asked has no others."""
    found = list(checks.reachable(patient))
    yield from found
    if any(finding.severity is Severity.ERROR for finding in found):
        return
    yield from checks.dialect(patient)
    yield from stream_checks.streams(patient, house)
    yield from checks.block_size(patient)
    yield from checks.cached_tokens(patient)
    yield from checks.tokens(patient, house)
    yield from checks.clock(patient)
    yield from checks.trust(patient)
