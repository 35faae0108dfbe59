"""Messages with broken bytes, fed to both views: whatever the scanner takes, the decoder takes, with the same outcome."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.events.recorded import RECORDED, expected
from tests.fakes.wire import stored
from tests.radix.core.engine_streams import FORMS, GRAIN, Stream
from tests.radix.core.feeding import Pair
from tests.radix.core.memory_check import check_memory

ROUND = 16  # messages between two looks at everything
_HEADS = bytes([*range(0x80, 0x84), *range(0x90, 0x94), *range(0xA3, 0xA5), *range(0xC0, 0xE0), 0xFF])


def _overwrite(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    data[at] = chance.randrange(256) if chance.random() < 0.5 else chance.choice(_HEADS)


def _nudge(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    data[at] = (data[at] + chance.choice((-1, 1))) % 256


def _insert(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = bytes([chance.choice(_HEADS)]) + chance.randbytes(chance.choice((0, 0, 1, 4)))


def _cut(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 1, 2, 9, len(data)))]


def _lengthen(chance: random.Random, data: bytearray) -> None:
    """A header that announces far more than there is."""
    at = chance.randrange(len(data))
    wide = chance.choice(("dcffff", "ddffffffff", "dd00010001", "df7fffffff", "c6ffffffff"))
    data[at : at + chance.choice((0, 1))] = bytes.fromhex(wide)


def _repeat(chance: random.Random, data: bytearray) -> None:
    """A stretch of the message once more, elsewhere."""
    start = chance.randrange(len(data))
    piece = data[start : start + chance.choice((1, 3, 9, 30))]
    at = chance.randrange(len(data) + 1)
    data[at : at + chance.choice((0, len(piece)))] = piece


_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (_overwrite, _nudge, _insert, _cut, _lengthen, _repeat)


_STRANGE: tuple[object, ...] = (
    *(None, True, 0, 1, 4, 16, -1, 2**31, 2**32, 2**63, 1.5, "", "GPU", "x", "\u00e9", b"", b"\1" * 8),
    *([], [None], [[None]], {"a": 1}, {1: 2}),
)


def _reworded(chance: random.Random, value: object) -> object:
    """A well-formed message that differs somewhere: a value is another one, is missing, or comes twice."""
    if isinstance(value, list) and value and chance.random() < 0.95:
        value = list(value)
        at = chance.randrange(len(value))
        luck = chance.random()
        if luck < 0.1:
            del value[at]
        elif luck < 0.2:
            value.insert(at, value[chance.randrange(len(value))])
        else:
            value[at] = _reworded(chance, value[at])
        return value
    if isinstance(value, dict) and value and chance.random() < 0.95:
        value = dict(value)
        name = chance.choice(list(value))
        luck = chance.random()
        if luck < 0.1:
            del value[name]
        elif luck < 0.2:
            value[chance.choice(("zzz", "medium", f"{name}s", f"x{name}"[:-1]))] = chance.choice(_STRANGE)
        else:
            value[name] = _reworded(chance, value[name])
        return value
    if isinstance(value, int) and chance.random() < 0.5:
        return max(min(value + chance.choice((-1, 1)), 2**64 - 1), -(2**63))
    return chance.choice(_STRANGE)


class Fuzz:
    """An endless run; one pair of views, cleared between rounds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.pairs = {counting: Pair(counting=counting) for counting in (True, False)}
        self.messages = self.whole = self.broken = 0

    def round(self) -> None:
        """A holder with one plain store gets some broken messages after it."""
        chance = self.chance
        pair = self.pairs[chance.random() < 0.5]
        pair.clear()
        pair.left = False
        first, good = self._stream() if chance.random() < 0.5 else self._recorded()
        pair.take(first)
        for _ in range(ROUND):
            if pair.left:
                break
            if pair.feed() is None:
                pair.take(first)
            payload = self._changed(chance.choice(good))
            slow = pair.slow
            taken = pair.take(payload)
            self.messages += 1
            self.whole += pair.slow == slow and bool(taken) and not pair.left
            self.broken += not taken
        if not pair.left:
            pair.compare()
        if chance.random() < 0.02:
            check_memory(pair.tree)

    def _recorded(self) -> tuple[bytes, list[bytes]]:
        line = self.chance.choice(RECORDED)
        found: dict[str, int] = next((event for event in expected(line)["events"] if event.get("block_size")), {})
        grain, parent = found.get("block_size", 16), found.get("parent_block_hash")
        kind = {"kv_cache_spec_kind": "full_attention"} if self.chance.random() < 0.5 else {}
        first = self.plain_store(grain, parent if isinstance(parent, int) else 77, **kind)
        return first, [bytes.fromhex(line["payload_hex"])]

    def _stream(self) -> tuple[bytes, list[bytes]]:
        stream = Stream(self.chance, self.chance.choice(list(FORMS)), counting=True)
        return self.plain_store(GRAIN), [stream.payload() for _ in range(6)]

    def plain_store(self, grain: int, name: int = 5, **more: object) -> bytes:
        """A message that makes a holder one the scanner is for."""
        return msgspec.msgpack.encode([1.0, [stored([name], None, range(grain), grain, **more)], 0])

    def _changed(self, payload: bytes) -> bytes:
        if self.chance.random() < 0.5:
            message = msgspec.msgpack.decode(payload)
            for _ in range(self.chance.choice((0, 1, 1, 3))):
                message = _reworded(self.chance, message)
            return msgspec.msgpack.encode(message)
        data = bytearray(payload)
        for _ in range(self.chance.choice((0, 1, 1, 1, 2, 4))):
            self.chance.choice(_CHANGES)(self.chance, data)
            if not data:
                break
        return bytes(data)
