"""Write a capture: what came over an engine's event sockets, as JSON lines that `events score` and `events decode` read.

Token ids are prompts, and block hashes can be computed from prompts. So unless prompts were asked for, both are replaced by
values under a secret of the file: equal blocks stay equal, and nothing leads back to a text.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TextIO

import msgspec

from events.decode.announced import Announced
from events.decode.engine_wire import read
from events.errors import DecodeError
from events.replay import Frames
from radix.changes import Cleared, Removed, Tier

_MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE", Tier.SHARED: "SHARED"}
_END = b"\xff" * 8


class Recorder:
    """Writes to an open file; times are seconds since it began."""

    def __init__(self, file: TextIO, *, prompts: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._began = clock()
        self._veil = None if prompts else Veil(secrets.token_bytes(16))
        self._write("meta", {"prompts": prompts, "wall_clock_start": time.time()})

    def subscriber(self, *, up: bool) -> None:
        """Our connection came or went."""
        self._write("subscriber", {"state": "up" if up else "down"})

    def event(self, frames: Frames) -> None:
        """One live batch."""
        seq = frames.seq.to_bytes(8, "big").hex()
        payload = self._shown(frames)
        self._write("event", {"topic_hex": frames.topic.hex(), "seq": frames.seq, "seq_hex": seq, "payload_hex": payload})

    def replay(self, start: int, batches: Sequence[Frames]) -> None:
        """One replay that was answered to its end."""
        answers = [["", frames.seq.to_bytes(8, "big").hex(), self._shown(frames)] for frames in batches]
        self._write(
            "replay",
            {
                "start_seq": start,
                "request_frames_hex": ["", start.to_bytes(8, "big").hex()],
                "response_frames_hex": [*answers, ["", _END.hex(), ""]],
                "ended": True,
            },
        )

    def _shown(self, frames: Frames) -> str:
        return (frames.payload if self._veil is None else self._veil.cover(frames)).hex()

    def _write(self, kind: str, fields: dict[str, object]) -> None:
        line = {"kind": kind, "t": round(self._clock() - self._began, 5)} | fields
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Veil:
    """Rewrites messages so that they say the same about blocks and nothing about prompts."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def cover(self, frames: Frames) -> bytes:
        """The message in map form under other hashes and tokens; empty when it cannot be read."""
        try:
            message = read(frames.payload, frames.seq)
        except DecodeError:
            return b""
        events = [self._event(event) for event in message.events]
        return msgspec.msgpack.encode([message.ts, events, message.rank])

    def _event(self, event: Announced | Removed | Cleared) -> dict[str, object]:
        if isinstance(event, Cleared):
            return {"type": "AllBlocksCleared"}
        fields: dict[str, object] = {
            "block_hashes": [self._hash(value) for value in event.hashes],
            "medium": _MEDIA[event.tier],
            "group_idx": event.group,
        }
        return {"type": "BlockRemoved"} | fields if isinstance(event, Removed) else self._stored(event) | fields

    def _stored(self, event: Announced) -> dict[str, object]:
        keys = event.keys
        salt, extra = keys.get("cache_salt"), keys.get("extra_keys")
        names = keys.get("lora_name")
        return {
            "type": "BlockStored",
            "parent_block_hash": None if event.parent is None else self._hash(event.parent),
            "token_ids": self._tokens(event),
            "block_size": event.block_tokens,
            "lora_id": keys.get("lora_id"),
            "lora_name": names,
            "kv_cache_spec_kind": keys.get("kv_cache_spec_kind"),
            "kv_cache_spec_sliding_window": event.window_tokens or None,
            "cache_salt": self._word(salt) if salt else None,
            "extra_keys": self._keys(extra, names) if extra else None,
        }

    def _tokens(self, event: Announced) -> list[int]:
        """As many as there were; those of a block follow from its hash, which covers its whole prefix."""
        size = max(event.block_tokens, 1)
        names = [self._digest(b"t%d" % value) for value in event.hashes] or [b""]
        places = range(len(event.tokens))
        return [self._number(b"%b%d" % (names[min(i // size, len(names) - 1)], i % size)) % 2**31 for i in places]

    def _keys(self, value: object, adapter: object) -> object:
        """Words become other words, in the same nesting; the adapter's name and numbers stay."""
        if isinstance(value, list):
            return [self._keys(item, adapter) for item in value]
        if isinstance(value, bytes):
            return self._digest(value)
        return value if value is None or isinstance(value, int) or value == adapter else self._word(value)

    def _hash(self, value: int) -> int:
        return self._number(b"h%d" % value)

    def _word(self, value: object) -> str:
        return self._digest(str(value).encode("utf-8", "surrogatepass")).hex()

    def _number(self, value: bytes) -> int:
        return int.from_bytes(self._digest(value)[:8], "big")

    def _digest(self, value: bytes) -> bytes:
        return blake2b(value, key=self._secret, digest_size=16).digest()
