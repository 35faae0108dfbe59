"""The storm with its writer and readers in processes of their own, as a command that tests run.

`blow READERS SECONDS CHECK` forks a writer and readers, each with the tree at another address, and prints what they saw.
`kill ROUNDS` forks a writer again and again, kills it wherever it is and reads on.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt
from numba import types

from radix.core.atomics import data_of, load_64, trailing_zeros
from radix.core.children import find_child
from radix.core.entries import Int64Array
from radix.core.jit import default_cache, entry
from radix.core.keyed import load_keyed, match_rows_by_key
from radix.core.layout import ROOT_KEY_WORDS, SEQUENCE
from radix.core.matcher import empty_depths
from radix.core.memory import Memory
from radix.core.naming import root_key
from radix.core.reader import rows_at, walk
from radix.core.shared_matcher import SharedMatcher
from tests.radix.core.storm import BLOCKS, CHAINS, GRAIN, MOVERS, SHARED, Outcome, Scenario, Storm, draw, judge

PASSING = MOVERS + 1  # the holder under roots that come and go
PASSING_ROOTS = 8


def _read(
    base: int,
    scratch: int,
    keys: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    allowed: Int64Array,
    state: Int64Array,
    limit: int,
    check: int,
    counts: Int64Array,
) -> None:
    """Match random chains below the lasting root, and at times below one that comes and goes; counts as in `storm`."""
    for _ in range(limit):
        chain, passing = draw(state) % CHAINS, draw(state) & 7 == 0
        key = data_of(keys) + (1 + draw(state) % PASSING_ROOTS if passing else 0) * ROOT_KEY_WORDS * 4
        at = data_of(tokens) + chain * BLOCKS * GRAIN * 4
        if check != 0:
            answer = match_rows_by_key(base, scratch, key, GRAIN, at, BLOCKS * GRAIN)
        else:
            root = find_child(base, 0, key, ROOT_KEY_WORDS)
            answer = walk(base, scratch, root, GRAIN, at, BLOCKS * GRAIN) if root != 0 else 0
        if answer < 0:
            counts[3] += 1
        elif not passing:
            judge(scratch, answer, chain, allowed, counts)
        elif answer > 0:
            counts[0] += 1
            counts[1] += (
                answer >> 32 != 1 or answer & 0xFFFFFFFF != SHARED or trailing_zeros(load_64(rows_at(scratch) + 8)) != PASSING
            )


class SharedStorm(Storm):
    """A storm in shared memory, whose writer also makes and drops other roots with other holders."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        assert self.tree.open(PASSING) == PASSING
        self.nothing = np.zeros(0, np.int64)  # is evicted

    def write(self, rounds: int, state: Int64Array, held: Int64Array, stop: Int64Array) -> int:
        """`rounds` times some hundred operations and one root that comes and goes; returns the operations."""
        done = 0
        names = self.hashes[0, :SHARED].astype(np.uint64)
        for turn in range(rounds):
            done += self._write(
                self.tree.memory.base, self.root, self.hashes, self.tokens, self.lengths, held, stop, state, 200, 0, self.nothing
            )
            passing = self.tree.root(passing_name(turn % PASSING_ROOTS), GRAIN)
            chain = turn % CHAINS
            self.tree.store(PASSING, passing, GRAIN, names, self.tokens[chain, : SHARED * GRAIN])
            self.tree.clear(PASSING)
            assert self.tree.drop_root(passing)
        return done


def passing_name(number: int) -> bytes:
    """The namespace of a root that comes and goes."""
    return b"passing %d" % number


@cache
def compiled_reading() -> Callable[..., None]:
    """`_read` as machine code; made before a fork, children have it."""
    number, longs, table = types.int64, types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
    words = types.Array(types.int32, 2, "C")
    signature = types.void(number, number, words, words, table, longs, number, number, longs)
    return entry(_read, signature, default_cache(), nogil=True)


class Reader(Scenario):
    """One reader of another process's storm."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self.matcher = SharedMatcher(Memory(handle=handle))
        names = [b"storm", *(passing_name(number) for number in range(PASSING_ROOTS))]
        self.keys = np.stack([root_key(name, GRAIN) for name in names])
        self._read = compiled_reading()
        self.counts = np.zeros(4, np.int64)

    def read(self, limit: int, state: Int64Array, *, check: bool) -> None:
        """Match `limit` times and judge each answer."""
        base, scratch = self.matcher._base, self.matcher._address
        self._read(base, scratch, self.keys, self.tokens, self.allowed, state, limit, int(check), self.counts)

    def depths(self, chain: int) -> list[int] | None:
        """Blocks by holder on a chain, as the product asks; None when there was no answer."""
        out = empty_depths(64)
        if not self.matcher.depths_by_key(self.keys[0], GRAIN, self.tokens[chain], out):
            return None
        return [int(depth) // GRAIN for depth in out[:, 0]]

    def fits(self, chain: int, depths: list[int]) -> bool:
        """Whether some state of the tree has these depths."""
        lost = chain % 4 == 0 and depths[0] != BLOCKS
        movers = enumerate(depths[1 : MOVERS + 1], 1)
        seen = all(int(self.allowed[holder, chain]) >> depth & 1 or not depth for holder, depth in movers)
        return seen and not lost and not any(depths[MOVERS + 1 :])


def forked(work: Callable[[], object]) -> int:
    """Do something in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def blow(readers: int, seconds: float, *, check: bool) -> Outcome:
    """A writer and some readers, each in its process, for a while; without the check until the first torn answer."""
    board = np.frombuffer(mmap.mmap(-1, 4096), np.int64).reshape(-1, 8)  # stop, operations; then one row per reader
    storm = SharedStorm()
    assert storm.tree.memory.handle is not None
    handle = storm.tree.memory.handle

    parent = os.getpid()

    def going() -> bool:
        return not board[0, 0] and os.getppid() == parent

    def write() -> None:
        state, held, stop = np.array([88172645463325252]), np.zeros_like(storm.lengths), np.zeros(1, np.int64)
        while going():
            board[0, 1] += storm.write(20, state, held, stop)

    def read(number: int) -> None:
        padding = mmap.mmap(-1, (1 + number) << 30)  # so that the mapping lies elsewhere in each of them
        reader = Reader(handle)
        row, state = board[1 + number], np.array([1234567 + 7919 * number])
        row[4] = reader.matcher._base
        while going():
            reader.read(5_000, state, check=check)
            row[:4] = reader.counts
        padding.close()

    compiled_reading()
    load_keyed()
    children = [forked(write), *(forked(partial(read, number)) for number in range(readers))]
    seen = board[1 : 1 + readers]
    while not seen[:, 0].all():
        time.sleep(0.01)
    end = time.monotonic() + seconds
    while time.monotonic() < end and (check or not seen[:, 1:3].any()):
        time.sleep(0.02)
    board[0, 0] = 1
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    assert len({storm.tree.memory.base, *seen[:, 4].tolist()}) == 1 + readers, "all at one address proves less"
    answers, wrong, lost, given_up = seen[:, :4].sum(0).tolist()
    return Outcome(int(board[0, 1]), answers, wrong, lost, given_up, evicted=0)


def write_for_ever(storm: SharedStorm, state: Int64Array, held: Int64Array, stop: Int64Array) -> None:
    """Until it is killed, or alone."""
    parent = os.getppid()
    while os.getppid() == parent:
        storm.write(20, state, held, stop)


@dataclass(frozen=True)
class Deaths:
    """What matches saw after a writer's death, and how long they took. odd: writers killed within a change."""

    odd: int
    unknown: int
    answered: int
    wrong: int
    first_ms: float
    slowest_ms: float


def kill(rounds: int) -> Deaths:
    """Fork a writer, kill it at a random moment, read on; a fresh tree each time."""
    chance = random.Random(3)
    odd, unknown, answered, wrong, slowest_ms, first_ms = 0, 0, 0, 0, 0.0, 0.0
    for _ in range(rounds):
        storm = SharedStorm()
        assert storm.tree.memory.handle is not None
        reader = Reader(storm.tree.memory.handle)
        state, held, stop = np.array([chance.getrandbits(60)]), np.zeros_like(storm.lengths), np.zeros(1, np.int64)
        child = forked(partial(write_for_ever, storm, state, held, stop))
        reader.read(20_000, np.array([chance.getrandbits(60)]), check=True)
        time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        odd += int(reader.matcher._header[SEQUENCE >> 3]) & 1
        for turn in range(200):
            chain = chance.randrange(CHAINS)
            began = time.perf_counter()
            depths = reader.depths(chain)
            took_ms = (time.perf_counter() - began) * 1e3
            first_ms, slowest_ms = (max(first_ms, took_ms), slowest_ms) if not turn else (first_ms, max(slowest_ms, took_ms))
            unknown += depths is None
            answered += depths is not None
            wrong += depths is not None and not reader.fits(chain, depths)
        wrong += int(reader.counts[1] + reader.counts[2])
        os.close(storm.tree.memory.handle)
    return Deaths(odd, unknown, answered, wrong, first_ms, slowest_ms)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["blow", readers, seconds, check]:
            outcome: Outcome | Deaths = blow(int(readers), float(seconds), check=bool(int(check)))
        case ["kill", rounds]:
            outcome = kill(int(rounds))
        case words:
            sys.exit(f"cannot {words}")
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
