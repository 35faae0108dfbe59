"""A writer at full speed and readers that check every answer, as compiled loops, so that they truly run at once.

Chains of 40 blocks stand in groups of four that share their first 20. A holder stores, of each chain, a length of its own, and
removes it again from the front; so of each (holder, chain) the few depths are known which any state of the tree can show.
Holder 0 holds the first chain of each group for good. Where the writer also evicts, a chain may be cut wherever an edge ends:
where that of any holder does, or where chains part; and holder 0 is not spared.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import types

from radix.core.atomics import data_of, divide, load_64, shift_right, trailing_zeros
from radix.core.compiled import CompiledTree
from radix.core.entries import Int64Array
from radix.core.evicting import bytes_used, evict_leaves, sweep_handles
from radix.core.jit import default_cache, entry, inner
from radix.core.layout import SCRATCH_WANTED, SCRATCH_WIDTH
from radix.core.reader import match_rows, rows_at, walk
from radix.core.removing import clear_ledger, remove_blocks
from radix.core.storing import store_blocks

CHAINS, BLOCKS, SHARED, GRAIN, MOVERS = 64, 40, 20, 16, 24
CLEARED = 21  # holders from here on are cleared at times, edge by edge and in no order: any depth may be seen of them


@inner
def draw(state: Int64Array) -> int:
    """The next number of a xorshift generator."""
    value = state[0]
    value ^= value << 13
    value ^= shift_right(value, 7)
    value ^= value << 17
    state[0] = value
    return shift_right(value, 33)


def _write(
    base: int,
    root: int,
    hashes: Int64Array,
    tokens: npt.NDArray[np.int32],
    lengths: Int64Array,
    held: Int64Array,
    stop: Int64Array,
    state: Int64Array,
    limit: int,
    evict_every: int,
    dropped: Int64Array,
) -> int:
    """Store what is not held, remove what is, sometimes clear or evict; ledgers are numbered as holders. Returns how often."""
    done = 0
    while stop[0] == 0 and done < limit:
        chain, holder = draw(state) % CHAINS, 1 + draw(state) % MOVERS
        names, length = data_of(hashes) + chain * BLOCKS * 8, lengths[holder, chain]
        if held[holder, chain] != 0:
            remove_blocks(base, holder, names, length)
            held[holder, chain] = 0
        else:
            at = data_of(tokens) + chain * BLOCKS * GRAIN * 4
            store_blocks(base, holder, -1, root, GRAIN, 0, names, at, length)
            held[holder, chain] = 1
        if draw(state) & 63 == 0:
            holder = CLEARED + draw(state) % (MOVERS - CLEARED + 1)
            clear_ledger(base, holder)
            for other in range(CHAINS):
                held[holder, other] = 0
        if evict_every != 0 and draw(state) % evict_every == 0:
            evict_leaves(base, divide(bytes_used(base), 4))
            sweep_handles(base, len(dropped), data_of(dropped))
        done += 1
    return done


@inner
def judge(scratch: int, answer: int, chain: int, allowed: Int64Array, counts: Int64Array) -> None:
    """Whether the rows of an answer are those of a state that there can be; counts: answers, wrong depths, prompts lost."""
    counts[0] += 1
    whole = 0
    row = rows_at(scratch)
    for _ in range(answer >> 32):
        depth = load_64(row)
        bits = load_64(row + 8)
        if depth == BLOCKS and bits & 1 != 0:
            whole = 1
        while bits != 0:
            holder = trailing_zeros(bits)
            bits &= bits - 1
            wrong = holder > MOVERS or (holder > 0 and shift_right(allowed[holder, chain], depth) & 1 == 0)
            counts[1] += wrong
        row += 8 + 8 * load_64(scratch + 8 * SCRATCH_WIDTH)
    if chain % 4 == 0 and whole == 0:
        counts[2] += 1


def _read(
    base: int,
    scratch: int,
    root: int,
    tokens: npt.NDArray[np.int32],
    allowed: Int64Array,
    stop: Int64Array,
    state: Int64Array,
    limit: int,
    check: int,
    counts: Int64Array,
) -> int:
    """Match random chains; counts: answers, depths that no state has, prompts of holder 0 lost, tries given up."""
    done = 0
    while stop[0] == 0 and done < limit:
        done += 1
        chain = draw(state) % CHAINS
        at = data_of(tokens) + chain * BLOCKS * GRAIN * 4
        if check != 0:
            answer = match_rows(base, scratch, root, GRAIN, at, BLOCKS * GRAIN)
        else:
            answer = walk(base, scratch, root, GRAIN, at, BLOCKS * GRAIN)
        if answer < 0:
            counts[3] += 1
            continue
        judge(scratch, answer, chain, allowed, counts)
    return done


@dataclass(frozen=True)
class Outcome:
    """What a storm brought."""

    operations: int
    answers: int
    torn: int
    lost: int
    given_up: int
    evicted: int


class Scenario:
    """Chains, what each holder stores of them, and the depths that may be seen; the same in every process.

    tokens: int32 [chains, blocks * grain]; hashes: int64 [chains, blocks]; lengths, allowed: int64 [holders, chains].
    """

    def __init__(self, *, evict_every: int = 0) -> None:
        """evict_every: among how many operations there is one eviction of a quarter, 0 for none."""
        self.evict_every = evict_every
        chance = np.random.default_rng(5)
        self.tokens = chance.integers(0, 128_000, (CHAINS, BLOCKS * GRAIN)).astype(np.int32)
        self.hashes = chance.integers(1, 2**62, (CHAINS, BLOCKS))
        for chain in range(CHAINS):
            first = chain // 4 * 4
            self.tokens[chain, : SHARED * GRAIN] = self.tokens[first, : SHARED * GRAIN]
            self.hashes[chain, :SHARED] = self.hashes[first, :SHARED]
        self.lengths = chance.integers(1, BLOCKS + 1, (MOVERS + 1, CHAINS))
        self.lengths[chance.random(self.lengths.shape) < 0.2] = BLOCKS
        self.allowed = np.zeros_like(self.lengths)
        for holder in range(1, MOVERS + 1):
            for chain in range(CHAINS):
                depths = {int(self.lengths[holder, chain])}
                group = chain // 4 * 4
                depths |= {min(SHARED, int(self.lengths[holder, other])) for other in range(group, group + 4)}
                depths |= set(range(BLOCKS + 1)) if holder >= CLEARED else set()
                depths |= self._ends(chain, depths) if evict_every else set()
                self.allowed[holder, chain] = sum(1 << depth for depth in depths)

    def _ends(self, chain: int, depths: set[int]) -> set[int]:
        """Where edges of a chain may end, up to the deepest of these depths."""
        group = chain // 4 * 4
        ends = {int(each) for each in self.lengths[1:, chain]} | {SHARED}
        ends |= {min(SHARED, int(each)) for each in self.lengths[1:, group : group + 4].reshape(-1)}
        return {end for end in ends if end <= max(depths)}


class Storm(Scenario):
    """The tree, what is in it, and the compiled loops."""

    def __init__(self, *, evict_every: int = 0, shared: bool = False) -> None:
        """evict_every: see `Scenario`. shared: other processes may read the tree."""
        super().__init__(evict_every=evict_every)
        self.tree = CompiledTree(holders=64, shared=shared, huge_pages=False)
        self.root = self.tree.root(b"storm", GRAIN)
        assert [self.tree.open(holder) for holder in range(MOVERS + 1)] == list(range(MOVERS + 1))
        for chain in range(0, CHAINS, 4):
            self.tree.store(0, self.root, GRAIN, self.hashes[chain].astype(np.uint64), self.tokens[chain])
        number, longs, table = types.int64, types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
        prompts = types.Array(types.int32, 2, "C")
        writing = number(number, number, table, prompts, table, table, longs, longs, number, number, longs)
        reading = number(number, number, number, prompts, table, longs, longs, number, number, longs)
        self._write = entry(_write, writing, default_cache(), nogil=True)
        self._read = entry(_read, reading, default_cache(), nogil=True)

    def blow(self, readers: int, *, check: bool, seconds: float, until_torn: bool = False) -> Outcome:
        """One writer and some readers for a while, or until the first torn answer."""
        stop, held = np.zeros(1, np.int64), np.zeros_like(self.lengths)
        counts = [np.zeros(4, np.int64) for _ in range(readers)]
        operations, dropped = [0], np.zeros(MOVERS + 1, np.int64)

        def write() -> None:
            state = np.array([88172645463325252])
            while not stop[0]:
                operations[0] += self._write(
                    self.tree.memory.base,
                    self.root,
                    self.hashes,
                    self.tokens,
                    self.lengths,
                    held,
                    stop,
                    state,
                    1_000_000,
                    self.evict_every,
                    dropped,
                )

        def read(number: int) -> None:
            matcher = self.tree.new_matcher()
            assert matcher._scratch[SCRATCH_WANTED] == -1
            state = np.array([1234567 + 7919 * number])
            base, scratch = self.tree.memory.base, matcher._address
            while not stop[0]:
                self._read(
                    base, scratch, self.root, self.tokens, self.allowed, stop, state, 1_000_000, int(check), counts[number]
                )

        threads = [threading.Thread(target=write), *(threading.Thread(target=read, args=(n,)) for n in range(readers))]
        for thread in threads:
            thread.start()
        end, spared = time.monotonic() + seconds, not self.evict_every
        while time.monotonic() < end and not (until_torn and any(each[1] + each[2] * spared > 0 for each in counts)):
            time.sleep(0.02)
        stop[0] = 1
        for thread in threads:
            thread.join()
        for holder in range(1, MOVERS + 1):
            self.tree.clear(holder)
        answers, torn, lost, given_up = (sum(int(each[i]) for each in counts) for i in range(4))
        return Outcome(operations[0], answers, torn, lost * spared, given_up, int(dropped.sum()))
