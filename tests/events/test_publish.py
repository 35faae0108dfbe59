"""Our own sending side, heard by plain sockets and by our own stream."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import uvloop
import zmq
import zmq.asyncio

from events.decode import decode
from events.errors import EndpointError
from events.publish import Publisher
from events.replay import ask_replay
from events.supervise import EventStream
from events.times import StreamTimes
from events.types import EventsError, Freshness
from radix import Cleared, Index, Namespace, Removed, Stored
from tests.fakes.publisher import until

ANY = "tcp://127.0.0.1:0"


def block(number: int) -> Stored:
    """Block `number` of one long prompt."""
    return Stored((number + 1,), number or None, np.full(4, number, np.int32), 4)


def test_frames_are_topic_number_payload() -> None:
    with Publisher(ANY, topic="kv", rank=0) as publisher, zmq.Context() as context, context.socket(zmq.SUB) as reader:
        reader.setsockopt(zmq.LINGER, 0)
        reader.connect(publisher.bound_endpoint)
        reader.subscribe(b"kv")
        while not reader.poll(20):
            publisher.publish([Cleared()])
        first = reader.recv_multipart()
        last = publisher.publish([Removed((7,))])
        while int.from_bytes((frames := reader.recv_multipart())[1], "big") < last:
            pass
        assert [first[0], len(first[1])] == [b"kv", 8]
        assert decode(frames[2], last).events == (Removed((7,)),)


async def test_a_replay_gives_the_buffered_batches_with_topic_and_end_mark() -> None:
    """FC-02: only the newest `buffer_steps` batches are kept."""
    with Publisher(ANY, ANY, topic="kv", buffer_steps=3) as publisher, zmq.asyncio.Context() as context:
        assert publisher.bound_replay is not None
        assert [publisher.publish([block(n)]) for n in range(5)] == [0, 1, 2, 3, 4]
        batches = await ask_replay(context, publisher.bound_replay, 0, timeout_s=5)
        assert [frames.seq for frames in batches] == [2, 3, 4]
        asker = context.socket(zmq.DEALER)
        asker.connect(publisher.bound_replay)
        await asker.send_multipart([(4).to_bytes(8, "big")])  # without the delimiter: not answered
        await asker.send_multipart([b"", (4).to_bytes(8, "big")])
        reply, end = await asker.recv_multipart(), await asker.recv_multipart()
        asker.close(linger=0)
        assert reply[:3] == [b"", b"kv", (4).to_bytes(8, "big")]
        assert end == [b"", b"", b"\xff" * 8, b""]


async def test_our_stream_hears_our_publisher_and_its_successor() -> None:
    """FC-03: sent before, during and after the subscription; then another process on the same ports."""
    index = Index()
    holder = index.holder("r", 0, model="m")
    prompt = np.repeat(np.arange(400, dtype=np.int32), 4)

    def blocks() -> int:
        return index.match(Namespace("m"), prompt).tokens(holder) // 4

    first = Publisher(ANY, ANY)
    for n in range(100):
        first.publish([block(n)])
    stream = EventStream(index, holder, first.bound_endpoint, first.bound_replay, times=StreamTimes(settle_s=0.02))
    stream.start()
    engine = threading.Thread(target=lambda: [first.publish([block(n)]) for n in range(100, 400)])
    engine.start()
    try:
        await until(lambda: blocks() == 400 and stream.freshness is Freshness.LIVE)
        engine.join()
        first.close()
        with Publisher(first.bound_endpoint, first.bound_replay) as second:
            await until(lambda: stream.counts.restarts == 1 and stream.freshness is Freshness.LIVE)
            assert blocks() == 0
            second.publish([block(0), block(1)])
            await until(lambda: blocks() == 2)
    finally:
        await stream.stop()
        engine.join()


def test_the_stream_runs_on_the_loop_the_gateway_uses() -> None:
    """FC-02: the data plane's loop is uvloop; joining late and live batches work there too."""

    async def follow() -> int:
        index = Index()
        holder = index.holder("r", 0, model="m")
        with Publisher(ANY, ANY) as publisher:
            publisher.publish([block(0)])
            stream = EventStream(
                index, holder, publisher.bound_endpoint, publisher.bound_replay, times=StreamTimes(settle_s=0.02)
            )
            stream.start()
            await until(lambda: stream.freshness is Freshness.LIVE)
            publisher.publish([block(1)])
            await until(lambda: stream.counts.batches == 2)
            await stream.stop()
        return index.stats().blocks

    assert uvloop.run(follow()) == 2


def test_no_events_send_nothing() -> None:
    with Publisher(ANY) as publisher:
        assert publisher.publish([]) == -1
        assert publisher.publish([Cleared()]) == 0
        assert publisher.publish([]) == 0


def test_a_batch_that_cannot_be_written_leaves_no_hole() -> None:
    with Publisher(ANY) as publisher:
        with pytest.raises(EventsError, match="cannot be encoded"):
            publisher.publish([Removed((2**64,))])
        assert publisher.publish([Cleared()]) == 0


def test_close_sends_what_is_queued_and_leaves_nothing() -> None:
    """FC-14: no thread, no port; twice is fine; publishing afterwards is refused."""
    before = threading.active_count()
    publisher = Publisher(ANY, ANY)
    with zmq.Context() as context, context.socket(zmq.SUB) as reader:
        reader.setsockopt(zmq.LINGER, 0)
        reader.connect(publisher.bound_endpoint)
        reader.subscribe(b"")
        while not reader.poll(20):
            publisher.publish([Cleared()])
        last = [publisher.publish([block(n)]) for n in range(200)][-1]
        publisher.close()
        while int.from_bytes(reader.recv_multipart()[1], "big") < last:
            assert reader.poll(5000)
    publisher.close()
    assert threading.active_count() == before
    with pytest.raises(EventsError, match="after close"):
        publisher.publish([Cleared()])
    Publisher(publisher.bound_endpoint, publisher.bound_replay).close()


def test_an_endpoint_in_use_is_named() -> None:
    with Publisher(ANY) as publisher, pytest.raises(EndpointError, match=publisher.bound_endpoint):
        Publisher(publisher.bound_endpoint)


async def test_batches_carry_the_rank() -> None:
    """FC-21: whoever shares a topic between ranks can tell them apart."""
    with Publisher(ANY, ANY, rank=2) as publisher, zmq.asyncio.Context() as context:
        publisher.publish([Cleared()])
        assert publisher.bound_replay is not None
        (frames,) = await ask_replay(context, publisher.bound_replay, 0, timeout_s=5)
        assert decode(frames.payload, 0).rank == 2


def test_the_sending_side_needs_no_torch() -> None:
    code = "import sys, events.publish; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
