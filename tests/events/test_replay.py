"""Asking for the past, over a real socket."""

from __future__ import annotations

import pytest
import zmq.asyncio

from events.errors import ReplayError
from events.replay import Frames, ask_replay, parse_reply, unbroken_tail
from tests.fakes.publisher import FakePublisher


def frames(*numbers: int) -> list[Frames]:
    return [Frames(number, b"%d" % number) for number in numbers]


@pytest.mark.parametrize("old_replies", [False, True])
async def test_everything_from_the_start_asked_for_comes_in_order(old_replies: bool) -> None:
    """FC-01, edge case 8: in both layouts of a reply."""
    async with FakePublisher(old_replies=old_replies) as publisher:
        for number in range(6):
            await publisher.send(number, b"%d" % number, live=False)
        with zmq.asyncio.Context() as context:
            assert publisher.replay is not None
            assert await ask_replay(context, publisher.replay, 4, timeout_s=5) == frames(4, 5)
            assert await ask_replay(context, publisher.replay, 6, timeout_s=5) == []
        assert publisher.questions == [4, 6]


async def test_no_answer_is_an_error_after_the_time_given() -> None:
    async with FakePublisher() as publisher:
        publisher.answering = False
        with zmq.asyncio.Context() as context:
            assert publisher.replay is not None
            with pytest.raises(ReplayError, match=r"from 3 .*no reply for 0.05 s"):
                await ask_replay(context, publisher.replay, 3, timeout_s=0.05)


async def test_an_endpoint_that_cannot_be_is_an_error() -> None:
    with zmq.asyncio.Context() as context, pytest.raises(ReplayError, match="nowhere"):
        await ask_replay(context, "nowhere://x", 0, timeout_s=1)


@pytest.mark.parametrize("reply", [[b"", b"12345678"], [b"x", b"12345678", b""], [b"", b"short", b""]])
def test_a_reply_that_cannot_be_read_is_an_error(reply: list[bytes]) -> None:
    with pytest.raises(ReplayError, match="bytes"):
        parse_reply(reply)


def test_only_the_end_behind_the_last_hole_can_be_used() -> None:
    """FC-01: a full send buffer loses replies in the middle."""
    assert unbroken_tail(frames(3, 4, 7, 8, 9)) == frames(7, 8, 9)
    assert unbroken_tail(frames(3, 4, 5)) == frames(3, 4, 5)
    assert unbroken_tail([]) == []
