"""Batches that arrive together are applied together, and each still counts by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from events.replay import Frames
from events.types import Freshness
from events.zmq_source import Arrival, Link
from tests.events.lossy import BLOCK, Follower
from tests.fakes.wire import batch, chain
from tests.radix.trees import KINDS

pytestmark = pytest.mark.xdist_group("compiled")
BROKEN = b"\xc1 no msgpack"


def frames(*numbers: int) -> list[Frames]:
    """Batch n stores block n of one long prompt."""
    return [Frames(n, batch(chain(1, BLOCK, first=n), ts=float(n))) for n in numbers]


async def joined(tree: str) -> Follower:
    follower = Follower(replay=False, tree=tree)
    await follower.reconnect(Link.UP)
    return follower


def hashes(follower: Follower) -> list[int]:
    return sorted(block.hash for block in follower.index.dump(follower.holder))


@pytest.mark.parametrize("tree", KINDS)
async def test_one_that_cannot_be_read_in_the_middle_costs_what_came_before_it(tree: str) -> None:
    """FC-04, FC-07: it is known by its number, what was known before is dropped, what follows counts."""
    follower = await joined(tree)
    await follower.handle(*frames(0, 1))
    assert follower.freshness is Freshness.LIVE
    alone = Frames(6, batch(chain(1, BLOCK, salt=7)))
    await follower.handle(*frames(2, 3), Frames(4, BROKEN), Frames(5, BROKEN), alone)
    counts = follower.applier.counts
    assert (counts.batches, counts.decode_errors, counts.gaps, counts.restarts) == (5, 2, 0, 0)
    assert counts.bytes == sum(len(it.payload) for it in [*frames(0, 1, 2, 3), alone]) + 2 * len(BROKEN)
    assert follower.freshness is Freshness.PARTIAL
    assert len(hashes(follower)) == 1
    assert (follower.session._since, follower.applier.last_payload) == (6, alone.payload)
    await follower.handle(Frames(5, BROKEN))  # its bytes still tell a repetition from a new process
    assert (counts.duplicates, counts.restarts) == (1, 0)


@pytest.mark.parametrize("tree", KINDS)
async def test_a_first_batch_that_cannot_be_read_leaves_no_whole_view(tree: str) -> None:
    """FC-07: that the stream began at 0 does not help when 0 is lost."""
    follower = await joined(tree)
    await follower.handle(Frames(0, BROKEN), *frames(1))
    assert follower.freshness is Freshness.PARTIAL


@pytest.mark.parametrize("tree", KINDS)
async def test_repetitions_and_restarts_are_seen_inside_one_wake_up(tree: str) -> None:
    """FC-03, FC-08: also of batches that are not applied yet."""
    follower = await joined(tree)
    old = frames(0, 1, 2)
    new = [Frames(n, batch(chain(1, BLOCK, first=n, salt=500), ts=50.0 + n)) for n in range(2)]
    await follower.handle(*old, old[1], old[0], *new, new[0])
    counts = follower.applier.counts
    assert (counts.batches, counts.duplicates, counts.restarts) == (5, 3, 1)
    assert (len(hashes(follower)), follower.freshness) == (2, Freshness.LIVE)


@pytest.mark.parametrize("tree", KINDS)
async def test_a_hole_inside_one_wake_up_costs_what_came_before_it(tree: str) -> None:
    """FC-01: there is no replay socket here."""
    follower = await joined(tree)
    await follower.handle(
        *frames(0, 1, 2), Frames(5, batch(chain(2, BLOCK, salt=7))), Frames(6, batch(chain(1, BLOCK, salt=900)))
    )
    counts = follower.applier.counts
    assert (counts.batches, counts.gaps, follower.freshness) == (5, 1, Freshness.PARTIAL)
    assert len(hashes(follower)) == 3


@pytest.mark.parametrize("tree", KINDS)
async def test_the_loop_is_given_back_within_one_wake_up(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-28: requests are placed while many batches are applied."""
    monkeypatch.setattr("events.intake._SLICE_S", 0.0)
    follower = await joined(tree)
    await follower.handle(*frames(0))
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(follower.applier.counts.batches)
            await asyncio.sleep(0)

    watcher = asyncio.get_running_loop().create_task(watch())
    await follower.handle(*frames(*range(1, 257)))
    watcher.cancel()
    assert follower.applier.counts.batches == 257
    assert len(set(seen)) >= 4


async def test_what_was_judged_is_applied_when_the_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-14: the cursor and the view end at the same batch."""
    monkeypatch.setattr("events.intake._SLICE_S", 0.0)
    follower = await joined("plain")

    class Source:
        closed = False

        def __init__(self, *_: object) -> None:
            self.left: list[Sequence[Arrival]] = [frames(*range(100))]

        async def arrivals(self, _: float | None) -> Sequence[Arrival]:
            if self.left:
                return self.left.pop()
            return await asyncio.get_running_loop().create_future()

        def close(self) -> None:
            Source.closed = True

    monkeypatch.setattr("events.session.ZmqSource", Source)
    task = asyncio.get_running_loop().create_task(follower.session.run(None))  # type: ignore[arg-type]
    while follower.applier.counts.batches < 3:
        await asyncio.sleep(0)
    assert follower.session._intake, "in the middle"
    task.cancel()
    await asyncio.wait([task])
    assert Source.closed
    assert follower.applier.counts.batches == follower.session._cursor.expected == len(hashes(follower))


async def test_a_view_that_is_dropped_takes_what_was_judged_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-03: health says that the engine died while its last batches are applied."""
    monkeypatch.setattr("events.intake._SLICE_S", 0.0)
    follower = await joined("plain")
    await follower.handle(*frames(0))
    handling = asyncio.get_running_loop().create_task(follower.handle(*frames(*range(1, 60))))
    while follower.applier.counts.batches < 5:
        await asyncio.sleep(0)
    follower.session.forget()
    await handling
    assert (hashes(follower), follower.index.stats().orphans, follower.freshness) == ([], 0, Freshness.COLD)
