"""Random lives of a tree: stores, removals, clears, matches, evictions, beside the plain tree and dictionaries.

`python -m tests.radix.core.life OPERATIONS SEED` lives one life after another until that many operations are done.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence

from radix.core import layout as lay
from radix.core.compiled import CompiledTree
from radix.plain import PlainTree
from tests.radix.core.twins import Twins, assert_gone, compare_shapes, evict_both

SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((16,), 3, 1),
    ((16,), 8, 1),
    ((16, 16), 2, 3),
    ((4,), 40, 1),
    ((1,), 5, 1),
    ((2, 3), 3, 2),
    ((5, 16), 1, 1),
    ((1, 7), 8, 4),
)  # grains of the roots, holders, tiers
_LIFE_STEPS = 6_000


def live(seed: int, steps: int, grains: tuple[int, ...], holders: int, tiers: int = 1, *, room: int = 64) -> None:
    """One life: several roots, mixed operations, shapes compared now and then, all gone in the end."""
    chance = random.Random(seed)
    tree, plain = CompiledTree(holders=room, huge_pages=False), PlainTree()
    numbers = sorted(chance.sample(range(max(holders, 70)), holders)) if holders < 40 else list(range(holders))
    members = [(holder, tier) for holder in numbers for tier in range(tiers)]
    sides = [Twins(tree, plain, chance, grain, members) for grain in grains]
    evicting = chance.random() * 0.01
    if chance.random() < 0.3:
        tree.memory.words(lay.CLOCK, 1)[0] = lay.CLOCK_LIMIT - steps // 4  # the clocks are halved on the way
    for step in range(steps):
        if chance.random() < evicting:
            evict_both(sides, chance.choice((0.0, 0.3, 0.8, 0.95, 1.0)))
        chance.choice(sides).step()
        if step % 97 == 0:
            compare_shapes(tree, plain, sides)
    compare_shapes(tree, plain, sides)
    for side in sides:
        for at in range(len(members)):
            side.clear(at)
        root = tree.root(side.key, side.grain, make=False)
        assert root == 0 or tree.drop_root(root)
    assert tree.empty_roots == 0
    assert_gone(tree)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m tests.radix.core.life`."""
    operations, seed = (int(each) for each in (argv if argv is not None else sys.argv[1:]))
    done, number, started = 0, 0, time.monotonic()
    while done < operations:
        grains, holders, tiers = SHAPES[number % len(SHAPES)]
        try:
            live(seed + number, _LIFE_STEPS, grains, holders, tiers)
        except BaseException:
            sys.stderr.write(f"failed: live({seed + number}, {_LIFE_STEPS}, {grains}, {holders}, {tiers})\n")
            raise
        done, number = done + _LIFE_STEPS, number + 1
        if number % 20 == 0 or done >= operations:
            sys.stdout.write(f"{done} operations, {number} lives, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
