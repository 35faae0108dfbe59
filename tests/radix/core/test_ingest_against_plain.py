"""Payloads scanned into the compiled tree leave what the decoder and the plain index leave, in every form engines write."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.events.recorded import RECORDED, expected
from tests.fakes.wire import stored
from tests.radix.core.engine_streams import FORMS, Stream
from tests.radix.core.feeding import Pair

pytestmark = pytest.mark.xdist_group("jit")


def fed(line: dict[str, Any]) -> Pair:
    """A holder that got a recorded message twice, as by a replay, after a store of its block size which it may build on."""
    first: dict[str, Any] = next((event for event in expected(line)["events"] if event.get("block_size")), {})
    grain, parent = first.get("block_size", 16), first.get("parent_block_hash")
    name = parent if isinstance(parent, int) else 77
    pair = Pair(counting=line["id"].startswith("v"))
    pair.take(msgspec.msgpack.encode([1.0, [stored([name], None, range(grain), grain)], 0]))
    for _ in range(2):
        if not pair.left:
            pair.take(bytes.fromhex(line["payload_hex"]))
    return pair


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line["id"])
def test_every_recorded_message_leaves_the_same(line: dict[str, Any]) -> None:
    """FC-06: applied, given back, or the end of what the scanner is for."""
    pair = fed(line)
    if not pair.left:
        pair.compare()


def test_what_is_typical_is_understood() -> None:
    """Nothing of these comes back, but for the first message that says what kind its group is."""
    slow = {line["id"]: fed(line).slow - 1 for line in RECORDED if "typical" in line["id"] or "chain" in line["id"]}
    assert slow == {"v0320-typical": 1, "s0523-typical": 0, "s056-chain": 0}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counting", [True, False])
def test_random_streams_leave_the_same(form: str, counting: bool) -> None:
    fast = slow = 0
    for seed in range(4):
        chance = random.Random(f"{form} {counting} {seed}")
        pair = Pair(counting=counting)
        stream = Stream(chance, form, counting=counting)
        for _ in range(40):
            if pair.left:
                break
            pair.take(*(stream.payload() for _ in range(chance.choice((1, 1, 2, 5)))))
            if chance.random() < 0.2 and not pair.left:
                pair.compare()
        if not pair.left:
            pair.compare()
        fast, slow = fast + pair.fast, slow + pair.slow
    assert fast > 2 * slow > 0


def written(chance: random.Random, value: int) -> bytes:
    """A number in one of the forms that hold it, the shortest or not; seldom in the widest."""
    forms = [(0xCC, 1), (0xCD, 2), (0xCE, 4)] + [(0xCF, 8)] * (chance.random() < 0.02)
    wide = [bytes([tag]) + value.to_bytes(size, "big") for tag, size in forms if value < 1 << 8 * size]
    return chance.choice([*wide, bytes([value])] if value < 0x80 else wide)


def test_numbers_may_be_written_wider_than_they_need() -> None:
    """Engines write the shortest form, a relay may not; a token in eight bytes goes the slow way."""
    chance = random.Random(5)
    pair = Pair()
    for turn in range(400):
        grain, blocks = 4, chance.choice((1, 3, 8, 9))
        ids = [chance.choice((5, 127, 128, 255, 256, 70_000, 2**31 - 1)) for _ in range(grain * blocks)]
        event = stored([1000 * turn + at for at in range(blocks)], None, [], grain, medium="gpu")
        event["token_ids"] = "tokens"
        head = b"\xdc" + len(ids).to_bytes(2, "big")
        tokens = head + b"".join(written(chance, value) for value in ids)
        pair.take(msgspec.msgpack.encode([1.0, [event], 0]).replace(msgspec.msgpack.encode("tokens"), tokens))
    pair.compare()
    assert pair.fast > 4 * pair.slow > 4
