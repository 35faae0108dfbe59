"""Clients of raw bytes that wait, dawdle or leave, and judge strictly what they get."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

from tests.fakes.client import Answer, RawClient, post
from tests.overload.demand import Ask, Demand, Manner

_PATIENCE_S = 60.0  # far above every limit the gateway is told
_DEAF_S, _LOOK_S = 25.0, 10.0
_SMALL_BUFFER_BYTES = 4096
_REFUSED = (429, 503)
_ENGINE_FAILED = (502, 504)


class Clients:
    """Requests at a rate, whatever comes of them. counts: how they ended; failures: what must not be."""

    def __init__(self, port: int, seed: int, per_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.open = 0
        self._port = port
        self._per_s = per_s
        self._random = Random(seed)
        self._demand = Demand(seed + 1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Begin."""
        self._arrivals = asyncio.create_task(self._arrive())

    async def quiet(self) -> None:
        """No new requests; wait for those that are open."""
        if self._arrivals is not None:
            self._arrivals.cancel()
            for outcome in await asyncio.gather(self._arrivals, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
        await asyncio.gather(*self._tasks)

    async def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self._random.expovariate(self._per_s)
            await asyncio.sleep(max(0.0, due - loop.time()))
            task = loop.create_task(self._request(self._demand.draw()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, ask: Ask) -> None:
        self.counts["sent"] += 1
        self.open += 1
        try:
            outcome = await _play(self._port, ask)
        except TimeoutError:
            outcome = f"bad: neither answered nor refused in {_PATIENCE_S:.0f} s"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            outcome = f"bad: no answer: {type(error).__name__}"
        finally:
            self.open -= 1
        self.counts[outcome.partition(":")[0]] += 1
        if outcome.startswith("bad"):
            self.failures.append(f"{outcome} ({ask.manner.value}, stream={ask.stream}, {ask.own_tokens} tokens)")


async def _play(port: int, ask: Ask) -> str:
    """Send one request and see how it ends; raises TimeoutError, ConnectionError, IncompleteReadError."""
    slow = ask.manner in (Manner.SLOW, Manner.DEAF)
    raw = post(ask.body)
    async with RawClient(port, receive_buffer=_SMALL_BUFFER_BYTES if slow else None) as client:
        if ask.manner is Manner.LEAVES_SENDING:
            await client.send(raw[: len(raw) // 2])
            return await _leave(client, ask)
        await client.send(raw)
        match ask.manner:
            case Manner.LEAVES_WAITING:
                return await _leave(client, ask)
            case Manner.LEAVES_READING:
                return await _leave_reading(client, ask)
            case Manner.DEAF:
                return await _never_read(client)
            case Manner.SLOW:
                await asyncio.sleep(ask.stays_s * 3)
        return judge(await client.answer(within_s=_PATIENCE_S), ask.stream)


async def _leave(client: RawClient, ask: Ask) -> str:
    await asyncio.sleep(ask.stays_s)
    if ask.resets:
        client.reset()
    return "left"


async def _leave_reading(client: RawClient, ask: Ask) -> str:
    async with asyncio.timeout(_PATIENCE_S):
        await client.reader.read(1 + int(2000 * ask.stays_s))
    if ask.resets:
        client.reset()
    return "left"


async def _never_read(client: RawClient) -> str:
    """Not a byte for a long while; whoever looks then finds a connection that was cut, or an answer that was not long enough."""
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of sockets has it
    await asyncio.sleep(_DEAF_S)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    try:
        answer = await client.answer(within_s=_LOOK_S)
    except (ConnectionError, asyncio.IncompleteReadError):
        return "dropped"
    except TimeoutError:  # it waited for its engine for so long that nothing has piled up yet
        return "left"
    if answer.status == 200:
        return "whole" if answer.complete else "dropped"
    return judge(answer, True)


def judge(answer: Answer, stream: bool) -> str:
    """How a request ended, in one word; 'bad: ...' where it must not end so."""
    if answer.status == 200:
        return _stream(answer) if stream else _whole(answer)
    if not answer.complete:
        return f"bad: half an answer of status {answer.status}"
    if _message(answer.body) is None:
        return f"bad: status {answer.status} without a reason: {answer.body[:100]!r}"
    if answer.status in _REFUSED:
        return "refused" if answer.values(b"retry-after") else f"bad: status {answer.status} without Retry-After"
    if answer.status in _ENGINE_FAILED:
        return "engine_failed"
    return f"bad: status {answer.status}: {answer.body[:100]!r}"


def _whole(answer: Answer) -> str:
    if not answer.complete:
        return "cut"
    return "whole" if _has_choices(answer.body) else f"bad: not an answer: {answer.body[:100]!r}"


def _stream(answer: Answer) -> str:
    events = answer.events
    done, errors = events.count(b"data: [DONE]"), sum(_message(event.removeprefix(b"data: ")) is not None for event in events)
    if answer.complete:
        return "whole" if (done, errors) == (1, 0) and events[-1] == b"data: [DONE]" else f"bad: ended with {events[-1:]}"
    if done or errors > 1 or (errors and _message(events[-1].removeprefix(b"data: ")) is None):
        return f"bad: cut behind {events[-2:]}"
    return "cut" if errors else "cut_silently"


def _message(body: bytes) -> str | None:
    """The text of an error; None where it is none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _has_choices(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["choices"])
    except (ValueError, KeyError, TypeError):
        return False
