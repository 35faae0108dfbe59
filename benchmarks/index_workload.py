"""What both sides of the index benchmark do: the same hashes and events from the same seeds. Standard library only.

32 prefixes of 64 blocks are held by all workers; then events of N new blocks each under a random prefix, by a random worker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

BLOCK_TOKENS = 16
PREFIXES = 32
PREFIX_BLOCKS = 64
CELL_BLOCKS = 100_000


@dataclass(frozen=True)
class Event:
    """`hashes` follow the end of prefix number `prefix` (None: a prompt's start) at one worker."""

    worker: int
    prefix: int | None
    hashes: list[int]


def prefixes(seed: int) -> list[list[int]]:
    """The hashes of the shared prefixes."""
    chance = random.Random(seed)
    return [[chance.getrandbits(63) for _ in range(PREFIX_BLOCKS)] for _ in range(PREFIXES)]


def events(seed: int, workers: int, size: int, blocks: int, *, shared: bool = True) -> list[Event]:
    """About `blocks` blocks in events of `size`; without `shared` each is a prompt of its own."""
    chance = random.Random(seed * 7919 + workers * 31 + size)
    return [
        Event(
            chance.randrange(workers),
            chance.randrange(PREFIXES) if shared else None,
            [chance.getrandbits(63) for _ in range(size)],
        )
        for _ in range(max(blocks // size, 1))
    ]


def queries(found: list[Event], depth: int) -> list[tuple[int, int, int]]:
    """Prompts that go `depth` blocks down the first events: (event number, its prefix, blocks of the event itself)."""
    chosen = []
    for number, event in enumerate(found[:64]):
        assert event.prefix is not None
        chosen.append((number, event.prefix, max(depth - PREFIX_BLOCKS, 0)))
    return chosen
