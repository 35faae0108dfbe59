"""TensorRT-LLM's polled events: one answer of `/kv_cache_events`, which holds what happened on every rank since the last one.

The queue is emptied by reading it, so there is one reader, and it remembers: where each rank's numbers stand, which blocks are
only partly filled (their removals mean nothing), and on which level the others lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from reprlib import repr as shown

import msgspec

from events.decode.announced import Announced, Message
from events.decode.engine_wire import MAX_PAYLOAD_BYTES
from events.decode.fields import Malformed, hash_of, number_of
from events.errors import DecodeError
from radix.changes import Cleared, Removed, Tier

Fields = Mapping[str, object]
_Change = Announced | Removed | Cleared

_LEVELS = (Tier.DEVICE, Tier.HOST)  # whatever lies behind is on disk
_MAX_PARTIAL = 100_000  # per rank; an engine has at most one per running sequence


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
    """One rank's past. next_id: None before its first event; named: its events say which rank they are of."""

    next_id: int | None = None
    named: bool = False
    tiers: dict[int, Tier] = field(default_factory=dict)
    partial: dict[int, None] = field(default_factory=dict)  # oldest first


class PolledReader:
    """Reads the answers of one engine in order. block_tokens: 0 = that of the largest block seen so far."""

    def __init__(self, block_tokens: int = 0) -> None:
        self._block_tokens = block_tokens
        self._learns = block_tokens == 0
        self._window = 0  # the largest is the main attention's; stores of smaller ones say nothing about prefixes
        self._ranks: dict[int, _Rank] = {}

    def read(self, answer: bytes) -> list[Message]:
        """One message per rank that has events, with the number of its last one; raises DecodeError when it is no answer."""
        by_rank: dict[int, list[Fields]] = {}
        for event in _events(answer):
            raw_rank = event.get("attention_dp_rank")
            rank = raw_rank if isinstance(raw_rank, int) else 0
            by_rank.setdefault(rank, []).append(event)
            self._ranks.setdefault(rank, _Rank()).named |= isinstance(raw_rank, int)
            self._learn(event)
        return [self._message(number, self._ranks[number], events) for number, events in sorted(by_rank.items())]

    def _learn(self, event: Fields) -> None:
        """The main window and the size of its blocks, before anything is judged by them."""
        window = _window_of(event)
        if window > self._window:
            self._window = window
            self._block_tokens = 0 if self._learns else self._block_tokens
        blocks = _data_of(event).get("blocks")
        if self._learns and window == self._window and isinstance(blocks, list):
            sizes = [
                len(block["tokens"]) for block in blocks if isinstance(block, dict) and isinstance(block.get("tokens"), list)
            ]
            self._block_tokens = max([self._block_tokens, *sizes])

    def _message(self, number: int, rank: _Rank, events: list[Fields]) -> Message:
        changes: list[_Change] = []
        skipped = 0
        for event in events:
            try:
                event_id = _event_id(event)
                if rank.next_id not in (None, event_id):  # the ring was overwritten, or this is a new process
                    rank.tiers.clear()
                    rank.partial.clear()
                    changes.append(Cleared())
                rank.next_id = event_id + 1
                if _window_of(event) == self._window:
                    changes += self._changes(rank, _data_of(event))
            except Malformed:
                skipped += 1
        last = rank.next_id - 1 if rank.next_id is not None else 0
        return Message(number if rank.named else None, last, 0.0, tuple(changes), skipped)

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
            if len(block.tokens) < self._block_tokens or parent in rank.partial:
                rank.partial[block.hash] = None
                if len(rank.partial) > _MAX_PARTIAL:
                    del rank.partial[next(iter(rank.partial))]
                break
            blocks.append(block)
            rank.tiers[block.hash] = block.tier
        for tier, group in groupby(blocks, key=lambda block: block.tier):
            run = list(group)
            yield _announced(run, parent, tier, self._block_tokens, data.get("lora_name"))
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
    rank.tiers[block] = new
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


def _events(answer: bytes) -> list[Fields]:
    if len(answer) > MAX_PAYLOAD_BYTES:
        raise DecodeError(f"answer has {len(answer)} bytes, at most {MAX_PAYLOAD_BYTES} are read")
    try:
        decoded = msgspec.json.decode(answer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"answer is not JSON: {error}") from error
    events = decoded.get("events") if isinstance(decoded, dict) else decoded
    if not isinstance(events, list):
        raise DecodeError(f"answer is {type(decoded).__name__}, want a list of events")
    return [event if isinstance(event, dict) else {} for event in events]
