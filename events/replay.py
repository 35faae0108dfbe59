"""Ask an engine's ROUTER socket for the batches it still has.

The client is a DEALER that sends `[b"", start]`; a REQ socket would see only the first reply. Each question has a socket of its
own, so a late answer to a question given up cannot be taken for the answer to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from events.errors import ReplayError

_END = 2**64 - 1  # -1 as the engines write it
_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class Frames:
    """One batch as it came: its number and its bytes, and under which topic where it was live."""

    seq: int
    payload: bytes
    topic: bytes = field(default=b"", compare=False)


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
    """All batches from `start` on that the engine still has, in order; raises ReplayError.

    timeout_s: between two replies, not for all of them.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(endpoint)
        await socket.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")])
        batches: list[Frames] = []
        while True:
            async with asyncio.timeout(timeout_s):
                reply = parse_reply(await socket.recv_multipart())
            if reply is None:
                return batches
            batches.append(reply)
    except TimeoutError:
        raise ReplayError(f"replay from {start} at {endpoint}: no reply for {timeout_s:g} s") from None
    except zmq.ZMQError as error:
        raise ReplayError(f"replay from {start} at {endpoint}: {error}") from error
    finally:
        socket.close(linger=0)
