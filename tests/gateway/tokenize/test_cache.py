"""The ids of known texts, under a byte budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokenize.cache import Key, TokenCache


def ids(count: int, value: int = 0) -> np.ndarray:
    return np.full(count, value, np.int32)


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = TokenCache(20_000)
    for name in "ab":
        cache.put(name, ids(100))
    for number in range(30):
        assert cache.get("a") is not None
        cache.put(f"filler {number}", ids(300))
        assert cache.bytes <= 20_000
    assert cache.get("b") is None
    assert cache.get("filler 0") is None
    assert cache.get("filler 29") is not None


def test_a_turn_and_a_segment_of_the_same_text_are_two_things() -> None:
    cache = TokenCache(100_000)
    keys: list[Key] = ["hello", (0, "hello"), (1, "hello")]
    for value, key in enumerate(keys):
        cache.put(key, ids(3, value))
    found = [cache.get(key) for key in keys]
    assert [array.tolist() for array in found if array is not None] == [[0] * 3, [1] * 3, [2] * 3]


def test_one_long_text_does_not_empty_the_cache() -> None:
    cache = TokenCache(80_000)
    cache.put("short", ids(10))
    cache.put("long", ids(10_000))
    assert cache.get("long") is None
    assert cache.get("short") is not None


@given(st.lists(st.tuples(st.sampled_from([*"abcdef", (0, "a"), (1, "a")]), st.integers(0, 200)), max_size=60))
def test_the_budget_is_kept_and_the_sum_is_right(puts: list[tuple[Key, int]]) -> None:
    cache = TokenCache(8_000)
    for key, count in puts:
        cache.put(key, ids(count, count))
        found = cache.get(key)
        assert found is None or found.tolist() == [count] * count
        assert 0 <= cache.bytes <= 8_000
    again = TokenCache(10**9)
    for key in list(cache._entries):
        again.put(key, cache._entries[key])
    assert cache.bytes == again.bytes
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)
