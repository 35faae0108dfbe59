"""Random lives of an engine's cache as payloads, in the forms of different engines and versions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec

from radix import Tier
from tests.fakes.wire import CLEARED, Fields, removed, stored

GRAIN = 4
LETTERS = 5
PLAIN, ADAPTER, NUMBER, SALT = -1, -2, -3, -4
Path = tuple[int, ...]  # a namespace, then block letters from the prompt's start

_STORED = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
_MEDIA = {
    Tier.DEVICE: ("GPU", "GPU", "gpu", None),
    Tier.HOST: ("CPU", "cpu", "CPU_PINNED"),
    Tier.DISK: ("STORAGE", "FS", "DISK"),
    Tier.SHARED: ("EXTERNAL", "OBJ", "something new"),
}

_NAMESPACES: dict[int, Fields] = {PLAIN: {}, ADAPTER: {"lora_name": "one"}, NUMBER: {"lora_id": 3}, SALT: {"cache_salt": "two"}}


def _array(fields: Fields, length: int) -> object:
    names = {"BlockStored": _STORED[:length], "BlockRemoved": _REMOVED}.get(str(fields["type"]), ("type",))
    return [fields.get(name) for name in names]


def _sglang(fields: Fields) -> object:
    """SGLang's array: six fields, and a map with the salt behind them where there is one."""
    event = _array(fields, 7)
    assert isinstance(event, list)
    return [*event, {"cache_salt": fields["cache_salt"]}] if fields.get("cache_salt") else event


def _sparing(fields: Fields) -> object:
    """A map without what is nil, its keys in another order."""
    kept = [(name, value) for name, value in fields.items() if value is not None]
    return dict(kept[1:] + kept[:1])


def _new(fields: Fields) -> object:
    return fields | {"locality": "LOCAL", "session_id": "s-1", "ownership": "disk-7", "a field to come": None}


def _signed(value: int) -> object:
    return value - (1 << 64) if value >> 63 else value


def _digest(value: int) -> object:
    return b"\xab" * 24 + value.to_bytes(8, "big")


# The form of an event, and that of its hashes.
FORMS: dict[str, tuple[Callable[[Fields], object], Callable[[int], object]]] = {
    "vllm 0.9": (lambda fields: _array(fields, 6), _signed),
    "vllm 0.10": (lambda fields: _array(fields, 7), _digest),
    "vllm 0.14": (lambda fields: _array(fields, 8), int),
    "vllm 0.17": (lambda fields: _array(fields, 9), int),
    "vllm 0.20": (lambda fields: _array(fields, 10), _digest),
    "vllm 0.22": (lambda fields: _array(fields, 12), int),
    "vllm 0.24": (dict, int),
    "vllm 0.30": (_new, _digest),
    "sglang 0.5.9": (_sglang, _signed),
    "sglang 0.5.20": (_sparing, _signed),
}


class Stream:
    """One engine with a cache of its own on each tier."""

    def __init__(self, chance: random.Random, form: str, *, counting: bool) -> None:
        self.chance = chance
        self.shape, self.name = FORMS[form]
        self.tiers = 1 if form == "vllm 0.9" else 4  # it has no media yet
        self.counting = counting
        self.held: Counter[tuple[Tier, Path]] = Counter()
        self.salt = chance.getrandbits(32)
        first = (3, 200, 70_000, 2**31 - 1 - GRAIN)
        self.ids = [[chance.choice(first) + at for at in range(GRAIN)] for _ in range(LETTERS)]

    def payload(self) -> bytes:
        """The next message."""
        events = [self.shape(event) for _ in range(self.chance.choice((0, 1, 1, 2, 4, 12))) for event in self._events()]
        rank = self.chance.choice(([], [None], [0], [7, "more"]))
        return msgspec.msgpack.encode([self.chance.random() * 1e9, events, *rank])

    def _events(self) -> list[Fields]:
        luck = self.chance.random()
        if luck < 0.6:
            return [self._store()]
        if luck < 0.98:
            return self._removals()
        if luck < 0.985:
            self.held.clear()
            return [CLEARED]
        return [self._refused()]

    def _name(self, path: Path) -> object:
        return self.name(hash((self.salt, path)) % (1 << 64))

    def _any(self) -> Path | None:
        return self.chance.choice(list(self.held))[1] if self.held else None

    def _store(self) -> Fields:
        chance = self.chance
        parent = self._any() if chance.random() < 0.7 else None
        tier, more = self._tier(), self._letters()
        above = parent or (chance.choice((PLAIN,) * 30 + (ADAPTER, NUMBER, SALT)),)
        chain = [above + more[: at + 1] for at in range(len(more))]
        for path in chain:
            self.held[tier, path] += 1
        names = [self._name(path) for path in chain]
        fields = stored(names, None if parent is None else self._name(parent), self._tokens(more), GRAIN)
        fields["extra_keys"] = chance.choice((None, [None] * len(more)))
        said = parent is None or chance.random() < 0.5  # behind a parent it says nothing new
        return fields | {"medium": chance.choice(_MEDIA[tier])} | (_NAMESPACES[above[0]] if said else {})

    def _letters(self) -> Path:
        return tuple(self.chance.randrange(LETTERS) for _ in range(self.chance.choice((1, 1, 2, 3, 12, 40))))

    def _tokens(self, letters: Path) -> list[int]:
        return [value for letter in letters for value in self.ids[letter]]

    def _tier(self) -> Tier:
        return Tier(self.chance.choice((0, 0, 0, 0, 1, 2, 3)) % self.tiers)

    def _removals(self) -> list[Fields]:
        """Blocks from the end of a chain, one by one as an engine evicts them, or some at once; seldom one that nobody knows."""
        chance = self.chance
        if not self.held:
            return []
        tier, path = chance.choice(list(self.held))
        gone = [path[: len(path) - at] for at in range(min(chance.choice((1, 2, 8)), len(path) - 1))]
        for block in gone:
            self.held[tier, block] = self.held[tier, block] - 1 if self.counting else 0
            if self.held[tier, block] <= 0:
                del self.held[tier, block]
        names = [self._name(block) for block in gone]
        if chance.random() < 0.05:
            names.insert(chance.randrange(len(names) + 1), self.name(chance.getrandbits(64)))
        medium = chance.choice(_MEDIA[tier])
        if chance.random() < 0.3:
            return [removed(*names, medium=medium)]
        return [removed(name, medium=medium) for name in names]

    def _refused(self) -> Fields:
        """A store that names a block twice, its parent as its own child, or a block that lies elsewhere."""
        parent, other = self._any(), self._any()
        letters = self._letters()
        names: list[object] = [self.name(self.chance.getrandbits(64)) for _ in letters]
        above = None if parent is None else self._name(parent)
        if self.chance.random() < 0.5:
            names.append(names[0] if above is None else above)
            letters += (0,)
        elif other is not None:
            names.insert(0, self._name(other))
            letters = (LETTERS - 1, *letters)
        return stored(names, above, self._tokens(letters), GRAIN, medium=self.chance.choice(_MEDIA[self._tier()]))
