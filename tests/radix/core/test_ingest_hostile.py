"""Broken and strange messages: the scanner takes none that the decoder refuses, and takes the others as it does."""

from __future__ import annotations

import os
import time

import pytest

from tests.radix.core.payload_fuzz import Fuzz

SECONDS = float(os.environ.get("TRUNKLINE_FUZZ_SECONDS", "4"))  # longer by hand
pytestmark = pytest.mark.xdist_group("jit")


def test_whatever_arrives_leaves_what_the_slow_way_leaves() -> None:
    """FC-07, edge cases 31, 34, 35."""
    fuzz = Fuzz(int(os.environ.get("TRUNKLINE_FUZZ_SEED", "3")))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        fuzz.round()
    assert fuzz.whole > fuzz.messages // 20 > 10
    assert fuzz.broken > fuzz.messages // 20


@pytest.mark.parametrize(
    "payload",
    [
        b"\x92\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff\x01",
        b"\x92\xcb" + bytes(8) + b"\x91\xdf\xff\xff\xff\xff",
        b"\x92\xcb" + bytes(8) + b"\x91" * 1_000_000,
        b"\x92\xcb" + bytes(8) + b"\x91\x92\xabBlockStored\xdd\xff\xff\xff\xff",
        b"\x92\xcb" + bytes(8) + b"\x91\x92\xabBlockStored\xdd\x00\x00\xff\xff" + b"\xc4\xff" * 70_000,
        b"\x92\xcb" + bytes(8) + b"\x91\x94\xabBlockStored\x91\x01\xc0\xdd\x00\x0f\xff\xff" + b"\xcf" * 1_048_575,
        b"\xdd\xff\xff\xff\xff" * 1000,
        b"\xdb\xff\xff\xff\xff" * 1000,
        b"",
    ],
    ids=["events", "fields", "depth", "hashes", "bytes", "tokens", "frame", "text", "nothing"],
)
def test_lengths_and_depths_cost_nothing(payload: bytes) -> None:
    """FC-07: no loop runs further than there are bytes."""
    fuzz = Fuzz(1)
    pair = fuzz.pairs[True]
    pair.take(fuzz.plain_store(4))
    begun = time.perf_counter()
    assert pair.take(payload) == []
    assert time.perf_counter() - begun < 1
