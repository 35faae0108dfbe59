"""The compiled index comes in: its machine code from the cache, or compiled by a process of its own so that requests go on."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from radix.errors import RadixError
from radix.index import Index

if TYPE_CHECKING:
    from radix.flat import FlatTree
    from radix.history import History
    from radix.sent import SentPrompts

log = logging.getLogger(__name__)


_TRIM_EVERY_S = 30.0


async def keep(index: Index) -> None:
    """Change over, and give back free memory from then on."""
    await change_over(index)
    await keep_trimmed(index)


async def keep_trimmed(index: Index, every_s: float = _TRIM_EVERY_S) -> None:
    """Give back free memory now and then, for ever."""
    while True:
        await asyncio.sleep(every_s)
        index.trim()


async def change_over(index: Index) -> None:
    """Move an index to the compiled tree, one holder at a time; where that can not be had, say why and stay."""
    try:
        await _ready()
        tree = await asyncio.to_thread(_new_tree)
    except (RadixError, OSError, RuntimeError, ImportError) as error:
        log.warning("index stays on the slow tree error=%s", error)
        return
    index.work_on(tree)
    moving = True
    while moving:
        moving = index.move()
        await asyncio.sleep(0)
    log.info("index runs compiled")


async def remember(sent: SentPrompts, budget_bytes: int) -> None:
    """Give it its history; without compiled code, say why and go on by load."""
    try:
        await _ready()
        sent.history = await asyncio.to_thread(_new_history, budget_bytes)
    except (RadixError, OSError, RuntimeError, ImportError) as error:
        log.warning("nothing is remembered, requests go by load error=%s", error)


async def compile_code() -> None:
    """Fill the cache in a process of its own, which ends with us when we are cancelled. Raises RadixError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "radix.core.bake", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, complaints = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise RadixError(f"compiling failed: {complaints.decode(errors='replace').strip()[-300:]}")


async def _ready() -> None:
    if not await asyncio.to_thread(_is_compiled):
        log.info("compiling the index: takes some 20 s once, `python -m radix.core.bake` does it beforehand")
        await compile_code()


def _is_compiled() -> bool:
    from radix.core.jit import default_cache, is_whole

    return is_whole(default_cache())


def _new_tree() -> FlatTree:
    from radix.core.compiled import CompiledTree
    from radix.flat import FlatTree

    return FlatTree(CompiledTree())


def _new_history(budget_bytes: int) -> History:
    from radix.history import History

    return History(budget_bytes)
