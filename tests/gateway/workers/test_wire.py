"""The sockets between the index process and its workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from socket import socket

import pytest

from events.apply import Counts
from gateway.workers.wire import (
    TO_INDEX,
    TO_WORKER,
    Loads,
    Notes,
    RankLoad,
    StreamState,
    Told,
    WireError,
    framed,
    greet,
    greeting,
    knock,
    new_door,
    next_message,
    next_visitor,
)
from radix.directory import Directory, SharedHolder
from radix.index import IndexStats

Door = tuple[socket, socket]


@pytest.fixture
def door() -> Iterator[Door]:
    inside, outside = new_door()
    yield inside, outside
    inside.close()
    outside.close()


def reader_of(*data: bytes) -> asyncio.StreamReader:
    """A stream of these bytes that ends behind them."""
    reader = asyncio.StreamReader()
    for part in data:
        reader.feed_data(part)
    reader.feed_eof()
    return reader


async def test_messages_come_as_they_were_sent() -> None:
    holder = SharedHolder(3, "r", 1, (0, 2), (16, 32), joint=True, limited=True)
    told = Told(
        Directory((holder,), ((16, 0, 0), (32, 2, 1))),
        [StreamState("r", 1, "live", True, False, Counts(batches=5, apply_lag_s=0.25))],
        IndexStats(1, 2, 3, 4, 5, 6, 7),
    )
    loads = [RankLoad("r", 1, 2, 300, 4)]
    notes = Notes([("r", 1, 900)], ["r"], loads)
    reader = reader_of(framed(told), framed(Loads(loads)), framed(notes))
    assert await next_message(reader, TO_WORKER) == told
    assert await next_message(reader, TO_WORKER) == Loads(loads)
    assert await next_message(reader, TO_INDEX) == notes
    with pytest.raises(asyncio.IncompleteReadError):
        await next_message(reader, TO_INDEX)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (b"\x01\x00\x00\x00\xc1", "cannot be read"),
        (framed(StreamState("r", 0, "live", True, False, Counts()))[:4] + b"\x80" * 300, "cannot be read"),
    ],
)
async def test_nonsense_is_an_error(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        await next_message(reader_of(data), TO_INDEX)


async def test_a_worker_may_knock_before_anybody_is_there(door: Door) -> None:
    """It is let in by whichever index process comes, and gets the handle that one has."""
    inside, outside = door
    waiting = [await knock(outside) for _ in range(40)]
    mine, theirs = os.pipe()
    for connection in waiting:
        visitor = await next_visitor(inside)
        greet(visitor, mine)
        visitor.close()
        handle = await greeting(connection)
        assert os.fstat(handle) == os.fstat(mine)
        os.close(handle)
        connection.close()
    os.close(mine)
    os.close(theirs)


async def test_an_index_process_that_ends_before_it_greets_is_noticed(door: Door) -> None:
    inside, outside = door
    connection = await knock(outside)
    asked = asyncio.ensure_future(greeting(connection))
    (await next_visitor(inside)).close()
    with pytest.raises(WireError, match="ended before it greeted"):
        await asked
    connection.close()


async def test_a_knock_without_a_handle_is_an_error(door: Door) -> None:
    inside, outside = door
    outside.send(b"I")
    with pytest.raises(WireError, match="0 handles"):
        await next_visitor(inside)
