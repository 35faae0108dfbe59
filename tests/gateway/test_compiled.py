"""How a gateway comes to run on the compiled index, and what it does where it can not."""

from __future__ import annotations

import asyncio
import logging
import mmap
from pathlib import Path

import numpy as np
import pytest

from gateway import compiled
from gateway.compiled import change_over, keep_trimmed
from radix import Index, Stored
from radix.core.jit import is_whole
from radix.flat import FlatTree
from tests.radix.build import apply, depth, store

pytestmark = pytest.mark.xdist_group("compiled")


@pytest.fixture
def index() -> Index:
    index = Index()
    for name in ("a", "b"):
        apply(index, index.holder(name, 0, model="m"), store([1, 2, 3]))
    return index


async def test_all_views_move_to_the_compiled_tree(index: Index) -> None:
    await change_over(index)
    (tree,) = index._trees
    assert isinstance(tree, FlatTree)
    assert [depth(index, holder, [1, 2, 3]) for holder in (0, 1)] == [3, 3]
    assert index.holder("c", 0, model="m") == 2
    apply(index, 2, store([1, 2]))
    assert depth(index, 2, [1, 2, 3]) == 2


async def test_memory_goes_back_to_the_system_after_a_view_is_gone(index: Index) -> None:
    """FC-14: what a view took is free for others when it ended, not only for the next view."""
    await change_over(index)
    for number in range(600):
        tokens = np.arange(number, number + 16_000, dtype=np.int32)
        apply(index, 0, Stored(tuple(range(number * 1000 + 10, number * 1000 + 1010)), None, tokens, 16))
    full = resident_bytes()
    index.clear(0)
    trimming = asyncio.create_task(keep_trimmed(index, every_s=0.01))
    async with asyncio.timeout(20):
        while resident_bytes() > full - (30 << 20):
            await asyncio.sleep(0.01)
    trimming.cancel()
    apply(index, 0, store([1, 2, 3]))
    assert [depth(index, holder, [1, 2, 3]) for holder in (0, 1)] == [3, 3]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


async def test_an_unusable_cache_leaves_the_slow_tree_and_says_so(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("TRUNKLINE_CACHE", str(in_the_way))
    with caplog.at_level(logging.WARNING):
        await change_over(index)
    assert "index stays on the slow tree" in caplog.text
    assert str(in_the_way) in caplog.text
    assert depth(index, 0, [1, 2, 3]) == 3


async def test_a_gateway_that_stops_does_not_leave_a_compiler_behind(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-57: what was started is ended."""
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def remember(*command: str, **options: int) -> asyncio.subprocess.Process:
        started.append(await create(*command, **options))
        return started[-1]

    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled.asyncio, "create_subprocess_exec", remember)
    task = asyncio.create_task(change_over(index))
    while not started:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started[0].returncode is not None
    assert not is_whole(tmp_path / "jit")
