"""Our own history of prompts: what it says, in bytes and in tokens, and what it forgets first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.errors import RadixError
from radix.history import LEAST_BUDGET, History
from radix.match import Int32Array
from radix.namespace import Namespace
from tests.radix.core.memory_check import check_memory, live_nodes

pytestmark = pytest.mark.xdist_group("compiled")

MODEL = Namespace("model")


@pytest.fixture
def history() -> History:
    return History(1 << 24, huge_pages=False)


def test_a_text_matches_in_whole_words_of_four_bytes(history: History) -> None:
    history.insert(0, MODEL, b"0123456789")
    assert history.match(MODEL, b"0123456789") == {0: 8}
    assert history.match(MODEL, b"01234567xx") == {0: 8}
    assert history.match(MODEL, b"0123456") == {0: 4}
    assert history.match(MODEL, b"012") == {}
    assert history.match(MODEL, b"") == {}


def test_a_character_may_be_cut_by_the_end_of_a_word(history: History) -> None:
    text = "Grüße an 東京 und 🏯".encode()
    history.insert(3, MODEL, text)
    assert history.match(MODEL, text) == {3: len(text) // 4 * 4}
    other = "Grüße an 東海".encode()  # the last two characters begin with different bytes
    same = next(at for at in range(len(other)) if text[at] != other[at])
    assert history.match(MODEL, other) == {3: same // 4 * 4}


def test_tokens_and_text_of_equal_words_are_strangers(history: History) -> None:
    words = np.arange(8, dtype=np.int32)
    history.insert(0, MODEL, words)
    history.insert(1, MODEL, words.tobytes())
    assert history.match(MODEL, words[:5]) == {0: 5}
    assert history.match(MODEL, words[:5].tobytes()) == {1: 20}
    assert history.match(Namespace("another"), words) == {}


def test_a_holder_is_forgotten_and_another_takes_its_number(history: History) -> None:
    history.insert(0, MODEL, b"a prompt of some length")
    history.insert(1, MODEL, b"a prompt of another length")
    history.forget(0)
    history.forget(7)
    assert history.match(MODEL, b"a prompt of some length") == {1: 12}
    history.forget(1)
    history.insert(0, MODEL, b"another life")
    assert history.match(MODEL, b"another life") == {0: 12}
    assert history.match(MODEL, b"a prompt of some length") == {}


def test_more_holders_than_there_was_room_for(history: History) -> None:
    for holder in range(130):
        history.insert(holder, MODEL, b"shared beginning" + holder.to_bytes(4, "little"))
    assert history.match(MODEL, b"shared beginning") == dict.fromkeys(range(130), 16)


def test_a_key_longer_than_the_longest_chain_is_cut() -> None:
    history = History(1 << 28, huge_pages=False)
    key = np.zeros((1 << 21) + 100, np.int32)
    history.insert(0, MODEL, key)
    history.insert(1, MODEL, key.tobytes())
    assert history.match(MODEL, key) == {0: (1 << 21) - 2}
    assert history.match(MODEL, key.tobytes()) == {1: 4 * ((1 << 21) - 2)}


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(RadixError, match="budget_bytes must be at least"):
        History(LEAST_BUDGET - 1)


def test_tokens_of_another_width_are_refused(history: History) -> None:
    with pytest.raises(RadixError, match="tokens must be int32, got int64"):
        history.insert(0, MODEL, np.arange(5))  # type: ignore[arg-type]


def texts(count: int) -> list[bytes]:
    """Prompts of 1 KB that begin alike in groups of eight."""
    chance = random.Random(2)
    shared = [chance.randbytes(512) for _ in range(count // 8)]
    return [shared[number // 8] + chance.randbytes(512) for number in range(count)]


def test_the_budget_holds_and_what_was_used_last_stays() -> None:
    history = History(1 << 18, huge_pages=False)
    prompts = texts(2_000)
    for number, text in enumerate(prompts):
        history.insert(number % 5, MODEL, text)
        history.match(MODEL, prompts[16])
        assert history.bytes_used <= 1 << 18
    assert history.match(MODEL, prompts[16])[16 % 5] == 1024
    kept = [number for number, text in enumerate(prompts) if 1024 in history.match(MODEL, text).values()]
    assert kept[0] == 16
    assert kept[1:] == list(range(kept[1], 2_000))
    assert len(kept) > 200
    check_memory(history._tree)


def test_roots_that_lost_everything_go_too() -> None:
    history = History(1 << 18, huge_pages=False)
    for number in range(3_000):
        history.insert(0, Namespace("model", salt=str(number)), b"the same prompt for everybody" * 10)
    assert history.bytes_used <= 1 << 18
    assert len(history._roots[0]) == history._tree.sizes().nodes / 2
    history.forget(0)
    assert history._roots == ({}, {})


Paths = set[tuple[int, int, tuple[int, ...]]]  # (root, holder, words from the start on)


def everything(history: History) -> Paths:
    """All that the tree's memory says, node by node."""
    nodes = live_nodes(history._tree.memory)
    paths: Paths = set()
    for node in nodes.values():
        if node.root == node.number:
            continue
        words: list[int] = []
        at = node
        while at.root != at.number:
            words[:0] = history._tree.memory.halves((16 << 30) + at.offset * 4, at.length).tolist()
            at = nodes[at.parent]
        for holder in range(64):
            if node.members[0] >> holder & 1:
                paths |= {(node.root, holder, tuple(words[:end])) for end in range(node.start + 1, len(words) + 1)}
    return paths


class Model:
    """What a history should say, by a set of all beginnings."""

    def __init__(self, history: History, chance: random.Random) -> None:
        self.history, self.chance = history, chance
        self.paths: Paths = set()

    def words(self) -> Int32Array:
        """A few words of three kinds, more often of a beginning that is there."""
        known = list(self.chance.choice(sorted(self.paths))[2]) if self.paths and self.chance.random() < 0.7 else []
        known = known[: self.chance.randrange(len(known) + 1)]
        return np.array(known + [self.chance.randrange(3) for _ in range(self.chance.randrange(1, 40))], np.uint32).astype(
            np.int32
        )

    def insert(self, holder: int, words: Int32Array) -> None:
        """Insert on both sides; what an eviction took is checked and taken over."""
        self.history.insert(holder, MODEL, words.tobytes() + b"xyz"[: self.chance.randrange(4)])
        root = self.history._roots[0][MODEL]
        self.paths |= {(root, holder, tuple(words[:end].tolist())) for end in range(1, len(words) + 1)}
        left = everything(self.history)
        if left != self.paths:
            assert left < self.paths
            assert all((root, holder, words[:end]) in left for root, holder, words in left for end in range(1, len(words)))
            self.paths = left

    def check(self, words: Int32Array) -> None:
        """The same answer on both sides."""
        root = self.history._roots[0].get(MODEL, 0)
        expected = {}
        for holder in range(4):
            ends = [end for end in range(1, len(words) + 1) if (root, holder, tuple(words[:end].tolist())) in self.paths]
            if ends:
                assert ends == list(range(1, len(ends) + 1))
                expected[holder] = 4 * len(ends)
        assert self.history.match(MODEL, words.tobytes()) == expected


@pytest.mark.parametrize("seed", range(3))
def test_it_says_what_a_set_of_all_beginnings_says(seed: int) -> None:
    chance = random.Random(seed)
    history = History(LEAST_BUDGET, huge_pages=False)
    model = Model(history, chance)
    for _ in range(400):
        luck = chance.random()
        if luck < 0.5:
            model.insert(chance.randrange(4), model.words())
        elif luck < 0.51:
            holder = chance.randrange(4)
            history.forget(holder)
            model.paths = {each for each in model.paths if each[1] != holder}
            assert everything(history) == model.paths
        else:
            model.check(model.words())
    check_memory(history._tree)
    for holder in range(4):
        history.forget(holder)
    assert history._tree.sizes().nodes == 0
