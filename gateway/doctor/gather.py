"""Find out everything about one replica: what this gateway knows of it, what it says itself, what a probe shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp
import zmq.asyncio

from events.apply import Counts
from events.errors import EndpointError
from events.redis_source import RedisStream
from gateway.choose.types import Receipt
from gateway.config import ReplicaSettings
from gateway.doctor.client import EngineClient
from gateway.doctor.engine import ask_engine
from gateway.doctor.listen import is_reached, newest_batch
from gateway.doctor.probe import WholeTokenizer, compare_tokens, send_twice
from gateway.doctor.types import Answered, EngineFacts, Patient, Probed, RankFacts
from gateway.fleet import Fleet, Replica
from gateway.followed import FollowedViews
from gateway.health import Facts, HealthMonitor
from gateway.request import Outcome
from gateway.views import Sockets, direct_source
from gateway.workers.wire import StreamState
from radix.reading import ReadableIndex

_RECEIPTS = 200  # of one replica, the latest


@dataclass(frozen=True, slots=True)
class Gatherer:
    """The running parts that know something of replicas."""

    fleet: Fleet
    views: FollowedViews
    index: ReadableIndex
    health: HealthMonitor
    session: aiohttp.ClientSession
    context: zmq.asyncio.Context

    async def patient(
        self, replica: Replica, receipts: Sequence[Receipt], tokenizer: WholeTokenizer | None, *, probe: bool
    ) -> Patient:
        """Everything about one replica; what cannot be had is left out."""
        client = EngineClient(self.session, replica)
        told = await self._told(replica)
        engine = await self._engine(client, told) if told is not None else None
        settings = self.health.settings_of(replica)
        # Before the probe, whose events may be the first since a restart that nobody noticed.
        looked_at = [self._looked_at(replica, settings, told or Facts(), rank) for rank in range(len(replica.holders))]
        patient = Patient(
            name=replica.name,
            url=replica.address.url,
            settings=settings,
            healthy=replica.healthy,
            last_error=replica.last_error,
            models=replica.models,
            engine=engine,
            ranks=tuple(await asyncio.gather(*looked_at)),
            answered=answered(replica.name, receipts),
        )
        if engine is None or not replica.healthy:
            return patient
        model = replica.models[0] if replica.models else ""
        parity, parity_error = await compare_tokens(client, model, tokenizer) if tokenizer is not None else ((), None)
        probed = await self._probe(client, replica, model) if probe else None
        ranks = tuple(self._known_now(replica, rank) for rank in patient.ranks)
        return replace(patient, ranks=ranks, probed=probed, parity=parity, parity_error=parity_error)

    async def _told(self, replica: Replica) -> Facts | None:
        try:
            return await self.health.read(replica)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def _engine(self, client: EngineClient, told: Facts) -> EngineFacts | None:
        try:
            return await ask_engine(client, told)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def _probe(self, client: EngineClient, replica: Replica, model: str) -> Probed:
        holder = replica.holders[0]

        def batches() -> int | None:
            stream = self.views.stream(holder)
            return stream.counts.batches if stream is not None else None

        try:
            size = self.index.block_tokens(holder)
            return await send_twice(client, model, size, ranks=len(replica.holders), batches=batches)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return Probed(0, f"{type(error).__name__}: {error}"[:200])

    async def _looked_at(self, replica: Replica, settings: ReplicaSettings, told: Facts, rank: int) -> RankFacts:
        """One rank, with a look at its sockets."""
        facts = self._known_now(replica, RankFacts(rank))
        try:
            source = direct_source(replica, settings, told, rank)
        except EndpointError:
            source = None
        if not isinstance(source, Sockets):
            return replace(facts, polled=source is not None)
        facts = replace(facts, events=source.events, replay=source.replay, reachable=await is_reached(source.events))
        if source.replay is None or facts.relayed or not facts.connected:
            return facts
        newest = await newest_batch(self.context, source.replay, facts.newest)
        return replace(facts, engine_newest=newest.seq, replay_error=newest.error)

    def _known_now(self, replica: Replica, facts: RankFacts) -> RankFacts:
        """The same rank with what the gateway knows of it at this moment; where its view ends stays as it was."""
        holder = replica.holders[facts.rank]
        stream = self.views.stream(holder)
        counts = stream.counts if stream is not None else Counts()
        view = self.fleet.view
        return replace(
            facts,
            followed=stream is not None,
            connected=stream is not None and stream.connected,
            relayed=isinstance(stream, RedisStream | StreamState) and stream.relayed,
            freshness=view.freshness[holder].value,
            trust=view.trust[holder],
            block_tokens=self.index.block_tokens(holder),
            batches=counts.batches,
            gaps=counts.gaps,
            restarts=counts.restarts,
            decode_errors=counts.decode_errors,
            rank_mismatches=counts.rank_mismatches,
            apply_lag_s=counts.apply_lag_s,
            newest=counts.newest if facts.engine_newest is None else facts.newest,
        )


def answered(name: str, receipts: Sequence[Receipt]) -> Answered:
    """What the latest receipts of one replica say; receipts: of all, newest first."""
    requests = without_cached = counted = miscounted = 0
    for receipt in receipts:
        if receipt.replica != name or receipt.outcome != Outcome.OK.value or receipt.prompt_tokens is None:
            continue
        requests += 1
        without_cached += receipt.realised_tokens is None
        if receipt.tokens_in:
            counted += 1
            miscounted += receipt.tokens_in != receipt.prompt_tokens
        if requests == _RECEIPTS:
            break
    return Answered(requests, without_cached, counted, miscounted)
