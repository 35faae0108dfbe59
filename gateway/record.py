"""Record traffic as a trace that the simulator replays and that says nothing of what was said.

One JSON line per answered request: Mooncake's fields, and session_id, block_size, cached_tokens, ttft_ms, e2e_ms, replica,
policy. Ids of blocks and sessions are keyed hashes under a secret that is made for the file, kept in memory only, and gone with
the process: equal prompts get equal ids inside the file, and nobody can try texts against them afterwards.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

import orjson

from gateway.choose.types import Receipt
from gateway.config import RecordSettings
from gateway.request import Intent, Outcome, Prompt
from gateway.spool import Spool, keep_older, open_append
from radix.match import Int32Array
from radix.namespace import Namespace

KEY_VARIABLE = "TRUNKLINE_RECORD_KEY"  # a supervisor's to its workers, which write one file
_BLOCKS_AT_ONCE = 256  # about 0.3 ms, after which the GIL is given back
_ID_BITS = 63  # readers take signed 64-bit numbers


class TraceKey:
    """The secret of one file and the time its clock starts at. started_at: unix seconds."""

    def __init__(self, secret: bytes, started_at: float) -> None:
        self._secret = secret
        self.started_at = started_at

    @classmethod
    def new(cls) -> TraceKey:
        """Of a new file."""
        return cls(secrets.token_bytes(32), time.time())

    def handed_on(self) -> str:
        """For the environment of a child."""
        return f"{self._secret.hex()}:{self.started_at!r}"

    @classmethod
    def of_environment(cls) -> TraceKey | None:
        """The one a supervisor made; None without."""
        text = os.environ.get(KEY_VARIABLE)
        if text is None:
            return None
        secret, _, started_at = text.partition(":")
        return cls(bytes.fromhex(secret), float(started_at))

    def block_ids(self, namespace: Namespace, tokens: Int32Array, block_tokens: int) -> list[int]:
        """One id per block, each of all tokens up to the block's end and of what separates equal tokens (FC-19).

        A last block that is not full gets an id that nobody else has: engines keep full blocks only.
        """
        parent = blake2b(namespace.key(), key=self._secret, digest_size=16).digest()
        data, size = tokens.tobytes(), 4 * block_tokens
        ids: list[int] = []
        full = len(data) // size
        for number in range(full):
            parent = blake2b(parent + data[number * size : (number + 1) * size], key=self._secret, digest_size=16).digest()
            ids.append(_short(parent))
            if number % _BLOCKS_AT_ONCE == _BLOCKS_AT_ONCE - 1:
                time.sleep(0)
        if len(data) > full * size:
            ids.append(secrets.randbits(_ID_BITS))
        return ids

    def session_id(self, session: str) -> str:
        """What stands for a session's name."""
        return blake2b(session.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=8, person=b"session").hexdigest()


class Recorder:
    """A witness that writes the trace. skipped: requests that are not in it, by reason."""

    def __init__(self, settings: RecordSettings, clock: Callable[[], float] = time.time) -> None:
        """Opens the file; an older one is kept beside it. Raises ConfigError. clock: unix seconds."""
        self.skipped: Counter[str] = Counter()
        key = TraceKey.of_environment()
        if key is None:
            keep_older(settings.file)
            key = TraceKey.new()
        handle = open_append(settings.file, "record.file")
        self.spool = Spool(settings.file, handle, most_bytes=settings.max_mib << 20)
        self._key = key
        self._clock = clock
        self._block_tokens = settings.block_tokens
        self._open: dict[str, tuple[float, str | None]] = {}  # request -> (unix seconds, session)
        self._ids: dict[str, list[int]] = {}  # belongs to the spool's thread

    def placed(self, request_id: str, intent: Intent, prompt: Prompt, namespace: Namespace) -> None:
        """See `Witness`."""
        tokens = prompt.tokens
        if tokens is None or intent.is_batch or not len(tokens):
            self.skipped["batch" if intent.is_batch else "no_tokens"] += 1
            return
        if self.spool.full:
            self.skipped["full"] += 1
            return
        if not self.spool.put(lambda: self._hash(request_id, namespace, tokens), tokens.nbytes):
            self.skipped["dropped"] += 1
            return
        self._open[request_id] = (self._clock(), intent.session)

    def closed(self, receipt: Receipt) -> None:
        """See `Witness`."""
        known = self._open.pop(receipt.request_id, None)
        if known is None:
            return
        reason = None
        if receipt.outcome != Outcome.OK.value:
            reason = "not_answered"
        elif not receipt.tokens_out:
            reason = "no_usage"
        if reason is not None:
            self.skipped[reason] += 1
            self.spool.put(lambda: self._forget(receipt.request_id), always=True)
        else:
            self.spool.put(lambda: self._line(receipt, *known), always=True)  # its ids are there already

    def _hash(self, request_id: str, namespace: Namespace, tokens: Int32Array) -> None:
        self._ids[request_id] = self._key.block_ids(namespace, tokens, self._block_tokens)

    def _forget(self, request_id: str) -> None:
        del self._ids[request_id]

    def _line(self, receipt: Receipt, placed_at: float, session: str | None) -> bytes:
        row = {
            "timestamp": round(1e3 * max(0.0, placed_at - self._key.started_at), 3),
            "input_length": receipt.tokens_in,
            "output_length": receipt.tokens_out,
            "hash_ids": self._ids.pop(receipt.request_id),
            "session_id": None if session is None else self._key.session_id(session),
            "block_size": self._block_tokens,
            "cached_tokens": receipt.realised_tokens,
            "ttft_ms": _milliseconds(receipt.ttft_s),
            "e2e_ms": _milliseconds(receipt.duration_s),
            "replica": receipt.replica,
            "policy": receipt.policy,
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 64 - _ID_BITS


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
