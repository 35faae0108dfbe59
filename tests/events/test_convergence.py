"""Two gateways that miss different things of the same engines end up with the same picture, and it is the engines' own."""

from __future__ import annotations

import pytest

from events.types import Freshness
from tests.events.convergence import KINDS, Follower, LossyEngine, converge, heal, trouble, world
from tests.fakes.publisher import until

pytestmark = pytest.mark.xdist_group("compiled")


@pytest.mark.parametrize("seed", range(4))
async def test_two_gateways_converge_whatever_each_of_them_lost(seed: int) -> None:
    """FC-01, FC-03: losses, broken links, restarts and silent replays, different for each; one gateway has the compiled tree."""
    async with world(seed) as (engines, followers):
        for follower in followers:
            follower.start()
        await trouble(engines, seed, 160)
        await heal(engines, followers)
        await converge(engines, followers)
        counts = [stream.counts for follower in followers for stream in follower.streams.values()]
        assert sum(each.gaps for each in counts) > 2
        assert sum(each.apply_errors + each.decode_errors + each.crashes for each in counts) == 0


async def test_they_converge_again_and_again() -> None:
    """Healing leaves nothing behind that spoils the next healing."""
    async with world(9) as (engines, followers):
        for follower in followers:
            follower.start()
        for turn in range(3):
            await trouble(engines, 100 + turn, 50)
            await heal(engines, followers)
            await converge(engines, followers)


async def test_one_that_joins_late_has_what_the_first_one_has() -> None:
    """FC-02: the whole past is in the replay buffer."""
    async with world(5) as (engines, (early, late)):
        early.start()
        await trouble(engines, 5, 120)
        late.start()
        await heal(engines, (early, late))
        await converge(engines, (early, late))
        assert all(stream.counts.gaps == 0 for stream in late.streams.values())


async def test_one_that_joins_too_late_knows_nothing_false_and_agrees_once_the_past_is_over() -> None:
    """FC-02, FC-11: of an engine that forgot its first batches a view is partial until the engine drops everything."""
    async with world(6) as (engines, (early, late)):
        early.start()
        await trouble(engines, 6, 120, restarts=False)
        for engine in engines:
            del engine.links[1].kept[:-5]
        late.start()
        await heal(engines, (early, late))
        await converge(engines, (early,))
        await until(lambda: all(is_partial_and_true(late, engine) for engine in engines))
        assert any(late.digest(engine) != engine.digest() for engine in engines)
        await drop_everything(engines)
        await converge(engines, (early,))
        await converge(engines, (late,), Freshness.PARTIAL)


async def test_without_replay_they_agree_once_the_engines_drop_everything() -> None:
    """FC-02: each loss costs the view; nothing false is left of it."""
    async with world(7, replay=False) as (engines, followers):
        for follower in followers:
            follower.start()
        await until(lambda: all(stream.connected for follower in followers for stream in follower.streams.values()))
        for engine in engines:
            for lost in ([False, False], [True, False], [False, False], [False, True], [False, False]):
                await engine.publish(lost)
        await until(lambda: all(is_partial_and_true(follower, engine) for follower in followers for engine in engines))
        await drop_everything(engines)
        await converge(engines, followers, Freshness.PARTIAL)


def is_partial_and_true(follower: Follower, engine: LossyEngine) -> bool:
    """It says that it does not know all, has heard something, and believes nothing that is not so."""
    stream = follower.streams[engine.kind.name]
    heard = stream.counts.batches > 0
    return heard and follower.freshness(engine) is Freshness.PARTIAL and not follower.beyond(engine)


async def drop_everything(engines: list[LossyEngine]) -> None:
    """Every engine clears its cache and goes on."""
    for engine in engines:
        await engine.publish([False, False], cleared=True)


def test_the_kinds_differ_in_what_they_say() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert {kind.counting for kind in KINDS} == {kind.arrays for kind in KINDS} == {kind.old_replies for kind in KINDS}
