"""Ask an engine's ROUTER socket for the batches it still has.

The client is a DEALER that sends `[b"", start]`; a REQ socket would see only the first reply. Each question has a socket of its
own, so a late answer to a question given up cannot be taken for the answer to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import zmq
import zmq.asyncio

from events.errors import ReplayError

_END = 2**64 - 1  # -1 as the engines write it
_SEQ_BYTES = 8
_MAX_MESSAGE_BYTES = 256 * 2**20
_PART, _PART_BYTES = 64, 256 * 1024  # batches at a time
_PATIENCE_S = 1.0  # for the first reply; then others have their turn
AT_ONCE = 4  # replays of one context; reading is faster than applying, so that more would only fill memory

_turns: WeakKeyDictionary[zmq.asyncio.Context, asyncio.Semaphore] = WeakKeyDictionary()  # as long as the contexts live


@dataclass(frozen=True, slots=True)
class Frames:
    """One batch as it came: its number and its bytes, and under which topic where it was live."""

    seq: int
    payload: bytes
    topic: bytes = field(default=b"", compare=False)


@dataclass(slots=True)
class Answer:
    """What became of a replay. first: the number it began with. torn: some in the middle are missing. ended: by its end mark."""

    first: int | None = None
    torn: bool = False
    ended: bool = False


def parse_reply(frames: Sequence[bytes]) -> Frames | None:
    """One reply, None for the end mark; raises ReplayError.

    Engines put the topic before the number or leave it out, so it is read from the end.
    """
    if len(frames) < 3 or frames[0] or len(frames[-2]) != _SEQ_BYTES:
        raise ReplayError(f"replay reply has frames of {[len(frame) for frame in frames]} bytes")
    seq = int.from_bytes(frames[-2], "big")
    return None if seq == _END else Frames(seq, frames[-1])


def unbroken_tail(batches: Sequence[Frames]) -> Sequence[Frames]:
    """The longest end part without a missing number; a replay loses batches where the engine's send buffer overflows."""
    for i in range(len(batches) - 1, 0, -1):
        if batches[i].seq != batches[i - 1].seq + 1:
            return batches[i:]
    return batches


async def ask_replay(context: zmq.asyncio.Context, endpoint: str, start: int, *, timeout_s: float) -> list[Frames]:
    """All batches from `start` on that the engine still has, in order; raises ReplayError. For replays that are not large."""
    return [frames async for part in read_replay(context, endpoint, start, timeout_s=timeout_s) for frames in part]


async def read_replay(
    context: zmq.asyncio.Context, endpoint: str, start: int, *, timeout_s: float
) -> AsyncGenerator[list[Frames], None]:
    """The batches from `start` on that the engine still has, in order, in parts as they come; raises ReplayError.

    timeout_s: between two replies, not for all of them. What was asked for and is not read yet lies in memory, since an engine
    throws away what it cannot send, so that only a few replays of one context run at a time. To be closed when it is left early.
    """
    turn = Turn(context)
    await turn.begin()
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.connect(endpoint)
        await socket.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")])
        replies: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
        patience_s = min(_PATIENCE_S, timeout_s)
        if not await socket.poll(int(patience_s * 1000)):
            turn.end()  # whoever does not answer holds up nobody
            await _poll(socket, timeout_s - patience_s)
        ended = False
        while not ended:
            await _poll(socket, timeout_s)
            part, ended = _received(replies)
            yield part
    except TimeoutError:
        raise ReplayError(f"replay from {start} at {endpoint}: no reply for {timeout_s:g} s") from None
    except zmq.ZMQError as error:
        raise ReplayError(f"replay from {start} at {endpoint}: {error}") from error
    finally:
        socket.close(linger=0)
        turn.end()


class Turn:
    """The right to run a replay, one of a few that the streams of a context share."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._turns = _turns.setdefault(context, asyncio.Semaphore(AT_ONCE))
        self._held = False

    async def begin(self) -> None:
        """Wait for it; those who came first have it first."""
        await self._turns.acquire()
        self._held = True

    def end(self) -> None:
        """Pass it on; may be called twice."""
        if self._held:
            self._held = False
            self._turns.release()


async def _poll(socket: zmq.asyncio.Socket, timeout_s: float) -> None:
    if not await socket.poll(int(timeout_s * 1000)):
        raise TimeoutError


def _received(replies: zmq.Socket[bytes]) -> tuple[list[Frames], bool]:
    """Some of what is there, and whether that was the end."""
    part: list[Frames] = []
    size = 0
    while len(part) < _PART and size < _PART_BYTES:
        try:
            reply = parse_reply(replies.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return part, False
        if reply is None:
            return part, True
        part.append(reply)
        size += len(reply.payload)
    return part, False
