"""The edge cases of the engines' protocols that no other test has; the last test here finds the others by their numbers."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from events.decode import decode
from events.types import Freshness
from radix import Index, Namespace, Tier
from tests.events.followed import BLOCK, following, live
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import CLEARED, as_array, batch, chain, removed, stored

TESTS = Path(__file__).parents[1]
BASE = Namespace("m")
PROMPT = np.array([10 * i + j for i in range(6) for j in range(BLOCK)], np.int32)


class View:
    """One holder fed with payloads."""

    def __init__(self, *, counting: bool = True) -> None:
        self.index = Index()
        self.holder = self.index.holder("r", 0, model="m", counting=counting)

    def feed(self, *events: object) -> View:
        self.index.apply(self.holder, decode(batch(*events), 0))
        return self

    def blocks(self, namespace: Namespace = BASE, tier: Tier = Tier.DEVICE) -> int:
        return self.index.match(namespace, PROMPT).tokens(self.holder, tier) // BLOCK


def test_removals_without_a_medium_are_the_devices_and_unknown_media_the_slowest() -> None:
    """Edge case 18: nil on either side; a tier nobody knows takes nothing from the device."""
    view = View().feed(chain(3, BLOCK, first=0) | {"medium": None}, chain(3, BLOCK) | {"medium": "TAPE"}, removed(3, medium=None))
    assert [view.blocks(tier=tier) for tier in Tier] == [2, 2, 2, 3]
    view.feed(removed(3, 2, 1, medium="TAPE"))
    assert [view.blocks(tier=tier) for tier in Tier] == [2, 2, 2, 2]


def test_a_clear_in_the_middle_of_a_batch_is_for_what_came_before() -> None:
    """Edge case 20: several in a row are harmless."""
    assert View().feed(chain(5, BLOCK), CLEARED, CLEARED, chain(2, BLOCK), CLEARED, chain(1, BLOCK)).blocks() == 1


def test_a_store_with_too_few_tokens_is_placed_up_to_its_last_full_block() -> None:
    """Edge case 22: and none of it where there are too many."""
    short = stored([1, 2, 3], None, PROMPT[: 2 * BLOCK + 1].tolist(), BLOCK)
    assert View().feed(short).blocks() == 2
    assert View().feed(stored([1, 2], None, PROMPT[: 3 * BLOCK].tolist(), BLOCK)).blocks() == 0


def test_a_removal_says_only_the_number_of_its_group() -> None:
    """Edge case 25: the kind is known from the stores; a group never heard of is a removal like any other."""
    full = chain(3, BLOCK) | {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    state = stored([3], None, PROMPT[: 3 * BLOCK].tolist(), BLOCK, group_idx=0, kv_cache_spec_kind="mamba")
    view = View().feed(full, state)
    assert view.blocks() == 3
    assert view.feed(removed(3, group_idx=7), removed(2, group_idx=0)).blocks() == 3
    assert view.feed(removed(3, group_idx=0)).blocks() == 0


@pytest.mark.parametrize("form", [dict, as_array])
def test_an_adapter_known_by_number_only_matches_no_name(form: object) -> None:
    """Edge case 27: the number means something inside one process only, and it is not the base model."""
    assert callable(form)
    view = View().feed(form(chain(3, BLOCK) | {"lora_id": 7}))
    names = [Namespace("m"), Namespace("m", "7"), Namespace("m", "sql")]
    assert [view.blocks(name) for name in names] == [0, 0, 0]
    assert view.feed(removed(1, 2, 3)).index.stats().blocks == 0


def test_a_reloaded_adapter_keeps_both_generations_until_they_are_removed() -> None:
    """Edge case 27: other weights under the same name have other hashes, and go by their own removals."""
    old, new = (stored([h + 1, h + 2], None, PROMPT[: 2 * BLOCK].tolist(), BLOCK, lora_name="a") for h in (0, 10))
    view = View().feed(old, new, removed(1, 2))
    assert view.blocks(Namespace("m", "a")) == 2
    assert view.feed(removed(11, 12)).blocks(Namespace("m", "a")) == 0


@pytest.mark.parametrize("keys", [{"extra_keys": [["s"], None, None]}, {"cache_salt": "s"}])
def test_salted_blocks_match_the_same_salt_only(keys: dict[str, object]) -> None:
    """Edge case 28: an empty salt is none; what follows the first block belongs with it."""
    view = View().feed(chain(3, BLOCK) | keys, chain(1, BLOCK, first=3))
    salts = ["s", "t", "", None]
    assert [view.blocks(Namespace("m", None, salt)) for salt in salts] == [4, 0, 0, 0]
    plain = View().feed(chain(3, BLOCK) | {"extra_keys": [[""], None, None], "cache_salt": ""})
    assert [plain.blocks(Namespace("m", None, salt)) for salt in salts] == [0, 0, 3, 3]


def test_an_image_nobody_can_name_stops_the_match_in_front_of_it() -> None:
    """Edge cases 29, 31: placeholder tokens repeat; strings among the ids; the text before it still counts."""
    keys = [None, [["img", 1]], [["img", -3]]]
    assert View().feed(chain(3, BLOCK) | {"extra_keys": keys}).blocks() == 1
    tokens: list[object] = [*PROMPT[: 2 * BLOCK - 1].tolist(), "digest", *PROMPT[2 * BLOCK : 3 * BLOCK].tolist()]
    assert View().feed(stored([1, 2, 3], None, tokens, BLOCK)).blocks() == 1  # type: ignore[arg-type]


def test_prompt_embeddings_never_match() -> None:
    """Edge case 30: their token ids are placeholders."""
    view = View().feed(chain(2, BLOCK) | {"extra_keys": [[b"\x01" * 32], [b"\x01" * 32]]})
    assert (view.blocks(), view.index.stats().blocks) == (0, 2)
    assert view.feed(removed(1, 2)).index.stats().blocks == 0


@pytest.mark.parametrize("token", [-5, 2**31, 2**62, -(2**40)])
def test_ids_no_prompt_can_have_do_not_match(token: int) -> None:
    """Edge case 31: negative ids and pad values outside of any vocabulary; their block can be removed."""
    tokens = [*PROMPT[: 2 * BLOCK - 1].tolist(), token]
    view = View(counting=False).feed(stored([1, 2], None, tokens, BLOCK))
    assert view.blocks() == 1
    assert view.feed(removed(2, 1)).index.stats().blocks == 0


def test_what_was_announced_stays_whatever_became_of_the_request() -> None:
    """Edge case 32: an aborted request's full blocks are the engine's until it says otherwise."""
    view = View().feed(chain(2, BLOCK))
    assert view.index.clear(view.index.holder("other", 0)) == 0
    assert view.blocks() == 2


def test_a_hit_announced_again_counts_as_a_copy_until_a_clear() -> None:
    """Edge case 33: it cannot be told from a real second copy; what over-predicts is healed by a clear."""
    view = View().feed(chain(3, BLOCK), chain(3, BLOCK), removed(3), removed(2))
    assert view.blocks() == 3
    assert view.feed(CLEARED).blocks() == 0


async def test_two_gateways_listen_to_one_engine() -> None:
    """Edge case 38: each has its own socket and asks for its own past."""
    async with FakePublisher() as publisher:
        await publisher.send(0, batch(chain(2, BLOCK)), live=False)
        async with following(publisher) as one, following(publisher) as other:
            for followed in (one, other):
                await until(lambda followed=followed: followed.depth() == 2)  # type: ignore[misc]
                await live(publisher, followed)
            await publisher.send(1, batch(chain(1, BLOCK, first=2)))
            await until(lambda: (one.depth(), other.depth()) == (3, 3))
            assert one.index.digest(one.holder) == other.index.digest(other.holder)
            assert publisher.questions == [0, 0]


async def test_an_engine_that_connects_finds_us_listening() -> None:
    """Edge case 39: the roles of the sockets are swapped; the numbers mean the same, and a reconnect is noticed."""
    async with FakePublisher(replay=False, connects=True) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await publisher.send(0, batch(chain(2, BLOCK)))
        await until(lambda: followed.depth() == 2)
        await publisher.restart()
        await until(lambda: followed.stream.connected and followed.blocks == 0)
        await publisher.subscribed()
        await publisher.send(0, batch(chain(1, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 1)
        assert followed.stream.freshness is Freshness.LIVE


@pytest.mark.parametrize("counting", [True, False])
def test_mass_eviction_costs_the_same_per_block(counting: bool) -> None:
    """Edge case 43: ten times the blocks take about ten times the work; looking through the rest each time takes a hundred."""

    def evict(count: int) -> float:
        view = View(counting=counting)
        hashes = range(1, count + 1)
        view.feed(stored(hashes, None, range(2 * count), 2))
        payload = decode(batch(*[removed(value) for value in reversed(hashes)]), 0)
        began = time.process_time()
        view.index.apply(view.holder, payload)
        took = time.process_time() - began
        assert view.index.stats().blocks == 0
        return took

    small, large = (min(evict(count) for _ in range(5)) for count in (2_000, 20_000))
    assert large < 50 * small


# Cases that are not the event side's: where their tests are.
ELSEWHERE = {
    41: ("gateway/test_place.py", "test_an_engine_that_counts_other_prompt_tokens_is_noticed_and_teaches_nothing"),
    42: ("gateway/choose/test_rates.py", "test_one_miss_among_hits_costs_little_and_three_in_a_row_much"),
    46: ("gateway/test_sse.py", "test_an_error_event_of_the_engine_is_noticed"),
}
# No request is ever ended through SGLang's abort route, which takes its id for a prefix.
NOT_APPLICABLE = {45}


def test_every_edge_case_has_a_test() -> None:
    """Edge cases 1 to 46: each number stands in the docstring of a test, or above."""
    for file, name in ELSEWHERE.values():
        assert f"def {name}" in (TESTS / file).read_text(encoding="utf-8")
    named = set(numbers_in_docstrings(r"[Ee]dge cases? ([\d, ]+)"))
    assert sorted(set(range(1, 47)) - named - ELSEWHERE.keys() - NOT_APPLICABLE) == []


def test_every_fault_case_of_events_and_views_has_a_test() -> None:
    """FC-01 to FC-21."""
    assert sorted(set(range(1, 22)) - set(numbers_in_docstrings(r"FC-(\d\d)"))) == []


def numbers_in_docstrings(pattern: str) -> Iterator[int]:
    """What the docstrings of all tests name, less those of the two tests that look for it."""
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.endswith("_has_a_test"):
                for listed in re.findall(pattern, ast.get_docstring(node) or ""):
                    yield from map(int, re.findall(r"\d+", listed))
