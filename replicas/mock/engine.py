"""One fake engine: its ranks, their event streams, its adapters, the requests that are open, and its lives.

A restart is what a new process would be: caches empty without an event, numbers from 0, a new epoch.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from replicas.errors import BadRequest, EngineStopped, UnknownModel, brief
from replicas.generation import Generation, Output, RequestHandle
from replicas.mock.faults import Faults
from replicas.mock.rank import Publish, Rank
from replicas.mock.settings import MockSettings
from replicas.mock.stream import EventStream, Sockets
from replicas.mock.tokens import Codec
from replicas.mock.wire import OneCopy, encoder_of
from replicas.openai_shapes import FinishReason


class MockHandle(RequestHandle):
    """A request's handle that may be told to break off. cut: (after so many outputs, how)."""

    cut: tuple[int, Callable[[], None]] | None = None
    _seen = 0

    async def __anext__(self) -> Output:
        """The next output; ConnectionResetError once the connection was cut on command."""
        if self.cut is not None and self._seen >= self.cut[0]:
            self.cut[1]()
            raise ConnectionResetError("cut on command")
        output = await super().__anext__()
        self._seen += 1
        return output


class MockEngine:
    """Engine number `number` of a fleet, all on one event loop.

    sockets: of each rank's events; empty publishes nothing. idle: set while no request is open.
    """

    def __init__(self, number: int, settings: MockSettings, codec: Codec, sockets: Sequence[Sockets] = ()) -> None:
        self.number = number
        self.settings = settings
        self.codec = codec
        self.faults = Faults(settings.seed + number)
        self.adapters: dict[str, str] = {name: f"/adapters/{name}" for name in settings.adapters}
        self.draining = False
        self.epoch = uuid.uuid4().hex
        self.started = int(time.time())
        self.streams = [
            EventStream(
                each,
                rank,
                encoder_of(settings.dialect, settings.event_form),
                self.faults,
                topic=settings.topic,
                buffer_steps=settings.buffer_steps,
                clock_skew_s=settings.clock_skew_s,
            )
            for rank, each in enumerate(sockets)
        ]
        self.ranks = [
            Rank(
                rank,
                settings.sizes,
                settings.times,
                codec,
                _publisher(self.streams[rank] if self.streams else None, settings),
                announces_start=settings.dialect != "vllm",  # vLLM's streams begin with the first blocks
            )
            for rank in range(settings.ranks)
        ]
        self._open: dict[RequestHandle, tuple[Rank, str]] = {}
        self._unheard: dict[RequestHandle, asyncio.TimerHandle] = {}  # nobody reads them any more, and we do not know yet
        self._next_rank = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def open_requests(self) -> int:
        """Requests whose answer is not complete."""
        return len(self._open)

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """Start every rank's loop."""
        for rank in self.ranks:
            yield asyncio.create_task(rank.run(), name=f"mock {self.number}/{rank.number}")

    def adapter_of(self, model: str | None) -> str | None:
        """The adapter a request's `model` names, None for the base model; raises UnknownModel."""
        if self.settings.dialect == "sglang" and model is not None:
            model = model.removeprefix(f"{self.settings.model}:")  # its way to name an adapter
        if model in (None, "", self.settings.model):
            return None
        if model not in self.adapters:
            raise UnknownModel(f"the model {brief(model)} does not exist here; this engine serves {self.settings.model!r}")
        return model

    def submit(
        self, generation: Generation, model: str, reason: FinishReason, *, rank: int | None = None, request_id: str = ""
    ) -> MockHandle:
        """Put a request in line, on the least loaded rank unless one is named; raises BadRequest and EngineStopped."""
        if self.draining:
            raise EngineStopped("the engine is shutting down")
        for prompt in generation.prompts:
            self._check(prompt, generation.max_tokens)
        chosen = self._rank(rank)
        handle = MockHandle(generation, self._cancelled)
        self._open[handle] = (chosen, request_id)
        self.idle.clear()
        chosen.submit(handle, model, reason)
        return handle

    def _check(self, prompt: array[int], max_tokens: int) -> None:
        if not prompt:
            raise BadRequest("the prompt has no tokens", "prompt")
        ids = np.frombuffer(prompt, np.int32)
        if (worst := int(ids.max())) >= self.codec.vocab_size or (worst := int(ids.min())) < 0:
            raise BadRequest(f"token id {worst} is not in the vocabulary of {self.codec.vocab_size} tokens", "prompt")
        limit = self.settings.context_tokens
        if len(prompt) + max_tokens > limit:
            raise BadRequest(f"{len(prompt)} tokens in the prompt and {max_tokens} to generate do not fit {limit}", "prompt")

    def _rank(self, number: int | None) -> Rank:
        if number is not None:
            if not 0 <= number < len(self.ranks):
                raise BadRequest(f"data parallel rank {number} is not one of {len(self.ranks)}", "data_parallel_rank")
            return self.ranks[number]
        turn = self._next_rank = (self._next_rank + 1) % len(self.ranks)
        order = self.ranks[turn:] + self.ranks[:turn]
        return min(order, key=lambda rank: 4 * rank.waiting + rank.running)  # as vLLM's front end weighs them

    def _cancelled(self, handle: RequestHandle) -> None:
        self._open[handle][0].cancel(handle)

    def ended(self, handle: RequestHandle) -> None:
        """The server is through with a request, whatever became of it."""
        if not handle.finished and (late_s := self.faults.hit("deaf")) is not None:
            self._unheard[handle] = asyncio.get_running_loop().call_later(late_s, self._end, handle)
        else:
            self._end(handle)

    def _end(self, handle: RequestHandle) -> None:
        self._unheard.pop(handle, None)
        handle.cancel()
        del self._open[handle]
        if not self._open:
            self.idle.set()

    def abort(self, wanted: Callable[[str], bool]) -> int:
        """End the requests whose id is `wanted`, with what they have; returns how many."""
        found = [(handle, rank) for handle, (rank, request_id) in self._open.items() if wanted(request_id)]
        for handle, rank in found:
            rank.abort(handle)
            if (timer := self._unheard.get(handle)) is not None:
                timer.cancel()
                self._end(handle)
        return len(found)

    def stop(self, handle: RequestHandle) -> None:
        """End one open request with what it has."""
        self._open[handle][0].abort(handle)

    def reset(self) -> bool:
        """Forget every hit of every rank; False when one of them is in use, and then that one keeps its own."""
        done = [rank.reset() for rank in self.ranks]
        if self.settings.dialect != "vllm":  # vLLM tells of it with its next step only
            for rank in self.ranks:
                rank.flush()
        return all(done)

    async def restart(self, ranks: Collection[int], *, reconnect: bool, down_s: float) -> None:
        """New processes behind these ranks; the HTTP side is not ours."""
        self.epoch = uuid.uuid4().hex
        chosen = [rank for rank in self.ranks if rank.number in ranks]
        streams = [self.streams[rank.number] for rank in chosen] if self.streams else []
        for stream in streams:
            stream.forget(disconnect=reconnect)
        for rank in chosen:
            rank.restart("the engine was restarted")
        if reconnect:
            await asyncio.sleep(down_s)
            await asyncio.gather(*(stream.reopen() for stream in streams))

    def close(self) -> None:
        """Close the event sockets."""
        for stream in self.streams:
            stream.close()


def _publisher(stream: EventStream | None, settings: MockSettings) -> Publish:
    if stream is None:
        return lambda events: None
    if settings.dialect != "sglang":
        return stream.publish
    one_copy = OneCopy()
    return lambda events: stream.publish(one_copy(events))
