"""TensorRT-LLM's polled events: one answer of `/kv_cache_events`, which holds what happened on every rank since the last one.

The queue is emptied by reading it, so there is one reader, and it remembers: where each rank's numbers stand, which blocks are
only partly filled (their removals mean nothing), and which lie elsewhere than on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from reprlib import repr as shown

import msgspec

from events.cursor import Cursor, Gap, Next
from events.decode.announced import Announced, Message
from events.decode.fields import Malformed, hash_of, number_of
from events.errors import DecodeError
from radix.changes import Cleared, Removed, Tier

Fields = Mapping[str, object]
_Change = Announced | Removed | Cleared

_LEVELS = (Tier.DEVICE, Tier.HOST)  # whatever lies behind is on disk
_MAX_PARTIAL = 100_000  # per rank; an engine has at most one per running sequence
_MAX_RANKS = 1024  # what an engine says is not believed beyond this
MAX_ANSWER_BYTES = 64 * 2**20  # some 30,000 blocks of 32 tokens


@dataclass(slots=True)
class _Block:
    """One block of a store."""

    hash: int
    tokens: list[object]
    tier: Tier
    extra: str | None  # what its virtual tokens stand for
    salt: str | None
    images: object


@dataclass(slots=True)
class _Rank:
    """One rank's past.

    void: nothing is believed of it, the next event begins anew. named: its events say which rank they are of. window: of the
    blocks that were told of. tiers: of blocks that are not on the device.
    """

    cursor: Cursor = field(default_factory=Cursor)
    void: bool = True
    named: bool = False
    window: int | None = None
    tiers: dict[int, Tier] = field(default_factory=dict)
    partial: dict[int, None] = field(default_factory=dict)  # oldest first

    def move(self, block: int, tier: Tier) -> None:
        """A block lies there now."""
        if tier is Tier.DEVICE:
            self.tiers.pop(block, None)
        else:
            self.tiers[block] = tier

    def forget(self) -> None:
        """What was told of so far is void; the numbers are remembered."""
        self.void = True
        self.window = None
        self.tiers.clear()
        self.partial.clear()


@dataclass(frozen=True, slots=True)
class Part:
    """What some events of an answer say of one rank. gaps, restarts: how often the numbers jumped, and began anew.

    since: the number of the event before which nothing is known, where these events set it: the rank's first one, or the one
    behind the last jump. size: bytes of the events.
    """

    rank: int
    message: Message
    since: int | None
    gaps: int
    restarts: int
    size: int


class PolledReader:
    """Reads the answers of one engine in order.

    block_tokens: 0 = that of the largest block seen so far. Whatever was given, blocks that others follow are right (FC-17).
    """

    def __init__(self, block_tokens: int = 0) -> None:
        self.block_tokens = block_tokens
        self._given = block_tokens
        self._certain = False  # a block that is followed by another one was seen
        self._window = 0  # the largest is the main attention's; stores of smaller ones say nothing about prefixes
        self._ranks: dict[int, _Rank] = {}

    def read(self, answer: bytes) -> list[Message]:
        """One message per rank that has events, with the number of its last one; raises DecodeError when it is no answer."""
        return [part.message for part in self.parts(split(answer))]

    def parts(self, events: Sequence[bytes | msgspec.Raw]) -> list[Part]:
        """The same of some events of an answer, see `split`: a large one is best read a few at a time."""
        by_rank: dict[int, list[tuple[Fields, int]]] = {}
        for raw in events:
            event = _fields_of(raw)
            number = event.get("attention_dp_rank")
            named = isinstance(number, int) and 0 <= number < _MAX_RANKS
            if number is not None and not named:
                event = {}  # counted below as one that cannot be read
            rank = number if named and isinstance(number, int) else 0
            by_rank.setdefault(rank, []).append((event, len(memoryview(raw))))
            self._ranks.setdefault(rank, _Rank()).named |= named
            self._learn(event)
        return [self._part(number, self._ranks[number], of_rank) for number, of_rank in sorted(by_rank.items())]

    def forget(self, rank: int) -> None:
        """The view of a rank was given up: its next event begins it anew."""
        if rank in self._ranks:
            self._ranks[rank].forget()

    def _learn(self, event: Fields) -> None:
        """The main window and the size of its blocks, before anything is judged by them."""
        window = _window_of(event)
        if window > self._window:
            self._window = window
            self.block_tokens = self._given
            self._certain = False
        blocks = _data_of(event).get("blocks")
        if window != self._window or not isinstance(blocks, list):
            return
        sizes = [len(block["tokens"]) for block in blocks if isinstance(block, dict) and isinstance(block.get("tokens"), list)]
        if len(sizes) > 1 and sizes[0]:
            self.block_tokens, self._certain = sizes[0], True  # the last one alone may be partly filled
        elif sizes and not self._certain:
            self.block_tokens = max(self.block_tokens, sizes[0])

    def _part(self, number: int, rank: _Rank, events: list[tuple[Fields, int]]) -> Part:
        changes: list[_Change] = []
        since: int | None = None
        skipped = gaps = restarts = 0
        for event, _ in events:
            try:
                event_id = _event_id(event)
                known = not rank.void
                judged = rank.cursor.step(event_id)
                if not isinstance(judged, Next):  # the ring was overwritten, another reader took some, or this is a new process
                    rank.cursor.skip(event_id)
                    gaps += isinstance(judged, Gap)
                    restarts += not isinstance(judged, Gap)
                    rank.forget()
                    changes += [Cleared()] if known else []
                if rank.void:
                    rank.void = False
                    since = event_id
                if _window_of(event) == self._window:
                    changes += self._of_window(rank, _data_of(event))
            except Malformed:
                skipped += 1
        message = Message(number if rank.named else None, rank.cursor.last or 0, 0.0, tuple(changes), skipped)
        return Part(number, message, since, gaps, restarts, sum(size for _, size in events))

    def _of_window(self, rank: _Rank, data: Fields) -> list[_Change]:
        outgrown = rank.window not in (None, self._window)
        if outgrown:  # what it told of so far belongs to a smaller window
            rank.tiers.clear()
            rank.partial.clear()
        rank.window = self._window
        return [Cleared(), *self._changes(rank, data)] if outgrown else self._changes(rank, data)

    def _changes(self, rank: _Rank, data: Fields) -> list[_Change]:
        match data.get("type"):
            case "created":
                return []
            case "stored":
                return list(self._stored(rank, data))
            case "removed":
                return list(_removed(rank, data))
            case "updated":
                return list(_moved(rank, data))
            case unknown:
                raise Malformed(f"event type {shown(unknown)}")

    def _stored(self, rank: _Rank, data: Fields) -> Iterator[Announced]:
        parent = _hash_of(data["parent_hash"]) if data.get("parent_hash") is not None else None
        blocks: list[_Block] = []
        for raw in _list_of(data.get("blocks"), "blocks"):
            block = _block_of(raw)
            if len(block.tokens) < self.block_tokens or parent in rank.partial:
                rank.partial[block.hash] = None
                if len(rank.partial) > _MAX_PARTIAL:
                    del rank.partial[next(iter(rank.partial))]
                break
            blocks.append(block)
            rank.move(block.hash, block.tier)
        for tier, group in groupby(blocks, key=lambda block: block.tier):
            run = list(group)
            yield _announced(run, parent, tier, self.block_tokens, data.get("lora_name"))
            parent = run[-1].hash


def _announced(run: list[_Block], parent: int | None, tier: Tier, block_tokens: int, adapter: object) -> Announced:
    keys: dict[str, object] = {"lora_name": adapter, "cache_salt": run[0].salt}
    if any(block.images or block.extra for block in run):
        keys["mm_keys"] = [_images(block) for block in run]
    tokens = [token for block in run for token in block.tokens]
    return Announced(tuple([block.hash for block in run]), parent, tokens, block_tokens, tier, keys=keys)


def _images(block: _Block) -> list[object]:
    images = list(block.images) if isinstance(block.images, list) else []
    return [*images, {"hash": f"\0virtual:{block.extra}"}] if block.extra else images


def _removed(rank: _Rank, data: Fields) -> Iterator[Removed]:
    whole: list[int] = []
    for value in map(_hash_of, _list_of(data.get("block_hashes"), "block hashes")):
        if value in rank.partial:
            del rank.partial[value]
        else:
            whole.append(value)
    for tier, group in groupby(whole, key=lambda value: rank.tiers.pop(value, Tier.DEVICE)):
        yield Removed(tuple(group), tier)


def _moved(rank: _Rank, data: Fields) -> Iterator[Removed | Announced]:
    """A block that changed its level leaves one tier and is in another; its tokens are those it had."""
    change = data.get("cache_level")
    block = _hash_of(data.get("block_hash"))
    if not isinstance(change, dict) or block in rank.partial:
        return
    old, new = _tier_of(change.get("old_value")), _tier_of(change.get("new_value"))
    if old is new:
        return
    rank.move(block, new)
    yield Announced((block,), None, [], 0, new)  # first there, then no longer here: its place is never forgotten between
    yield Removed((block,), old)


def _block_of(raw: object) -> _Block:
    if not isinstance(raw, dict):
        raise Malformed(f"block {shown(raw)}")
    tokens: list[object] = []
    extra: list[str] = []
    for token in _list_of(raw.get("tokens"), "tokens"):
        if not isinstance(token, dict):
            raise Malformed(f"token {shown(token)}")
        tokens.append(token.get("token_id"))
        if (virtual := token.get("token_extra_id")) and str(virtual) not in extra:
            extra.append(str(virtual))
    salt = raw.get("cache_salt")
    return _Block(
        _hash_of(raw.get("block_hash")),
        tokens,
        _tier_of(raw.get("cache_level")),
        ",".join(extra) or None,
        str(salt) if salt else None,
        raw.get("mm_keys"),
    )


def _hash_of(value: object) -> int:
    """Unsigned 64 bits as a number, or a whole digest in hexadecimal."""
    if not isinstance(value, str):
        return hash_of(value)
    try:
        return hash_of(int(value, 16))
    except ValueError:
        raise Malformed(f"block hash {shown(value)}") from None


def _tier_of(level: object) -> Tier:
    place = number_of(level, "cache_level", 0)
    return _LEVELS[place] if place < len(_LEVELS) else Tier.DISK


def _event_id(event: Fields) -> int:
    event_id = event.get("event_id")
    if not isinstance(event_id, int):
        raise Malformed(f"event_id {shown(event_id)}")
    return event_id


def _data_of(event: Fields) -> Fields:
    data = event.get("data")
    return data if isinstance(data, dict) else {}


def _window_of(event: Fields) -> int:
    window = event.get("window_size")
    return window if isinstance(window, int) else 0


def _list_of(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise Malformed(f"{name} {shown(value)}")
    return value


def split(answer: bytes) -> Sequence[msgspec.Raw]:
    """The events of an answer, unread; raises DecodeError when it is none. About 0.5 ms per MB."""
    if len(answer) > MAX_ANSWER_BYTES:
        raise DecodeError(f"answer has {len(answer)} bytes, at most {MAX_ANSWER_BYTES} are read")
    try:
        decoded = _ANSWER.decode(answer)
    except msgspec.ValidationError as error:
        raise DecodeError(f"answer is no list of events: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"answer is not JSON: {error}") from error
    return decoded.events if isinstance(decoded, _Wrapped) else decoded


class _Wrapped(msgspec.Struct):
    """An answer as an object."""

    events: list[msgspec.Raw]


_ANSWER = msgspec.json.Decoder(list[msgspec.Raw] | _Wrapped)


def _fields_of(raw: bytes | msgspec.Raw) -> Fields:
    try:
        event = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return event if isinstance(event, dict) else {}
