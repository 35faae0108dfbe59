"""How well a recorded stream of events would have predicted `cached_tokens`: one capture, line by line, through cursor and index.

A capture has the requests and answers of one engine beside its events (`docs/index-and-events.md` lists the lines). A prediction
is exact when it is right at the moment the request is sent, and in range when it was right at some moment while it was open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from reprlib import repr as shown
from typing import TypeVar

import numpy as np

from events.cursor import Cursor, Duplicate, Gap, Restart
from events.decode import decode
from events.errors import CaptureError, DecodeError, ReplayError
from events.replay import Frames, parse_reply, unbroken_tail
from radix.changes import Cleared
from radix.index import Index
from radix.match import Int32Array
from radix.namespace import Namespace

Line = Mapping[str, object]
_Kind = TypeVar("_Kind")

SEQUENTIAL = "one request at a time, state known (incl. n=2)"
TOGETHER = "sent together"
LISTS = "lists of prompts (last prompt)"
DROPPED = "after an unrecoverable gap, index dropped"
DOWN = "subscriber down"
UNASKED = "subscriber up, replay not asked yet"
RESET = "first request after a reset of an idle engine"
NO_LOOKUP = "prompt_logprobs / echo with logprobs"
REANNOUNCED = "scenario 14"

# Why a request of that class can be missed.
_WHY = {
    SEQUENTIAL: "a step in flight",
    TOGETHER: "concurrent",
    LISTS: "lists of prompts",
    DROPPED: "gap older than the buffer",
    DOWN: "subscriber down / just up",
    UNASKED: "subscriber down / just up",
    RESET: "after a reset of an idle engine",
    NO_LOOKUP: "prompt_logprobs, or echo with logprobs",
    REANNOUNCED: "kv_cache_report_mode full",
}


@dataclass(slots=True)
class Tally:
    """Requests of one class."""

    exact: int = 0
    in_range: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Miss:
    """One request that was not predicted exactly. reason: its class; low, high: the predictions while it was open."""

    id: str
    reason: str
    why: str
    predicted: int
    cached: int
    low: int
    high: int


@dataclass(slots=True)
class Score:
    """The result; classes without requests are absent."""

    classes: dict[str, Tally] = field(default_factory=dict)
    misses: list[Miss] = field(default_factory=list)

    def total(self) -> Tally:
        """All classes together."""
        tallies = self.classes.values()
        return Tally(
            sum(tally.exact for tally in tallies), sum(tally.in_range for tally in tallies), sum(tally.total for tally in tallies)
        )


@dataclass(slots=True)
class _Open:
    """A request that was sent and has no answer yet."""

    kind: str
    namespace: Namespace
    prompt: Int32Array
    predicted: int
    low: int
    high: int


def score(lines: Iterable[Line]) -> Score:
    """Judge a whole capture; raises CaptureError naming the line that cannot be used."""
    scorer = _Scorer()
    for number, line in enumerate(lines, 1):
        try:
            scorer.feed(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ReplayError) as error:
            raise CaptureError(f"line {number} ({line.get('kind')}) cannot be used: {type(error).__name__} {error}") from error
    return scorer.result


class _Scorer:
    """Follows one capture. The view is that of a consumer that never asks for anything by itself."""

    def __init__(self) -> None:
        self.result = Score()
        self._index = Index()
        self._holder = self._index.holder("capture", 0, model="capture")
        self._cursor = Cursor()
        self._held: list[Frames] = []  # live batches behind a gap, until a replay comes
        self._open: dict[str, _Open] = {}
        self._adapters: set[str] = set()
        self._block_tokens = 0
        self._listening = True
        self._asked = True  # since the subscriber came up
        self._dropped = False  # the view lacks what a gap swallowed
        self._reset = False  # of an idle engine, its clear not yet announced
        self._reannounces = False

    def feed(self, line: Line) -> None:
        """One line, in file order; kinds that say nothing about the view are passed over."""
        match line.get("kind"):
            case "meta":
                self._meta(line)
            case "restart":
                self._restart(line)
            case "subscriber":
                self._listening = line["state"] == "up"
                # The first one is the start of the capture, when nothing can have been missed.
                self._asked = self._asked and (self._listening or self._cursor.expected is None)
            case "event":
                self._live(Frames(int(_text(line["seq_hex"]), 16), bytes.fromhex(_text(line["payload_hex"]))))
            case "replay":
                self._replay(line)
            case "reset":
                self._note_reset(line)
            case "request":
                self._request(line)
            case "response":
                self._response(line)
            case "abort":
                self._open.pop(_text(line["id"]), None)

    def _meta(self, line: Line) -> None:
        adapters = line.get("lora_adapters")
        self._adapters.update(map(str, adapters) if isinstance(adapters, list) else ())
        size = line.get("block_size")
        self._block_tokens = size if isinstance(size, int) else 0

    def _restart(self, line: Line) -> None:
        """A new process begins empty, with batch 0, and says nothing about it."""
        self._clear()
        self._cursor.reset(0 if line["state"] == "up" else None)
        self._open.clear()
        self._dropped = self._reset = self._reannounces = False

    def _clear(self) -> None:
        self._index.clear(self._holder)
        self._held.clear()

    def _live(self, frames: Frames) -> None:
        if self._held:
            self._held.append(frames)
            return
        judged = self._cursor.step(frames.seq)
        if isinstance(judged, Gap):
            self._held.append(frames)
            self._asked = False
        elif isinstance(judged, Restart):
            self._clear()
            self._cursor.step(frames.seq)
            self._apply(frames)
        elif not isinstance(judged, Duplicate):
            self._apply(frames)

    def _replay(self, line: Line) -> None:
        """What a consumer does with the answer: fill the gap, or give up what it knew."""
        if not line.get("ended", True):
            return
        answers = _instance(line["response_frames_hex"], list)
        replies = [parse_reply([bytes.fromhex(frame) for frame in frames]) for frames in answers]
        batches = unbroken_tail([frames for frames in replies if frames is not None])
        self._asked = self._asked or bool(batches)
        expected = self._cursor.expected
        if expected is not None and batches and batches[0].seq > expected:
            self._index.clear(self._holder)
            self._cursor.reset(batches[0].seq)
            self._dropped = True
        held, self._held = self._held, []
        for frames in [*batches, *held]:
            if not isinstance(self._cursor.replayed(frames.seq), Duplicate | Gap):
                self._apply(frames)

    def _apply(self, frames: Frames) -> None:
        try:
            batch = decode(frames.payload, frames.seq)
        except DecodeError:
            self._clear()  # what it said is lost
            return
        self._index.apply(self._holder, batch)
        if any(isinstance(event, Cleared) for event in batch.events):
            self._dropped = False  # nobody knows more now than we do
        for request in self._open.values():
            now = self._predict(request.namespace, request.prompt)
            request.low, request.high = min(request.low, now), max(request.high, now)

    def _note_reset(self, line: Line) -> None:
        body = line.get("body")
        done = line.get("status") == 200 and isinstance(body, dict) and body.get("success") is True
        # While something runs the clear is announced with its next step.
        self._reset = self._reset or (done and not self._open)

    def _request(self, line: Line) -> None:
        body = _instance(line["body"], dict)
        xargs = body.get("vllm_xargs")
        if str(line.get("scenario", "")).startswith("14-") or (isinstance(xargs, dict) and "kv_cache_report_mode" in xargs):
            self._reannounces = True
        prompts = line.get("prompts_token_ids")
        prompt = prompts[-1] if isinstance(prompts, list) and prompts else line.get("prompt_token_ids")
        if prompt is None:
            self._reset = False
            return  # recorded without its prompt: nothing to compare
        tokens = np.array(prompt, np.int32)
        model, salt = body.get("model"), body.get("cache_salt")
        namespace = Namespace("capture", model if model in self._adapters else None, salt if isinstance(salt, str) else None)
        now = self._predict(namespace, tokens)
        self._open[_text(line["id"])] = _Open(self._class_of(line, body, now), namespace, tokens, now, now, now)
        self._reset = False

    def _class_of(self, line: Line, body: Mapping[str, object], predicted: int) -> str:
        if not self._listening:
            return DOWN
        if not self._asked:
            return UNASKED
        if body.get("prompt_logprobs") is not None or (body.get("echo") and body.get("logprobs") is not None):
            return NO_LOOKUP
        if self._reannounces:
            return REANNOUNCED
        if self._dropped:
            return DROPPED
        if line.get("prompts_token_ids") is not None:
            return LISTS
        if line.get("concurrent_group") is not None:
            return TOGETHER
        return RESET if self._reset and predicted else SEQUENTIAL  # a clear changes nothing for who hopes for nothing

    def _predict(self, namespace: Namespace, prompt: Int32Array) -> int:
        """Matched tokens, of which at least one is computed all the same."""
        matched = self._index.match(namespace, prompt).tokens(self._holder)
        block = self._index.block_tokens(self._holder) or self._block_tokens or 1
        return max(0, min(matched, (len(prompt) - 1) // block * block))

    def _response(self, line: Line) -> None:
        request = self._open.pop(_text(line["id"]), None)
        cached = line.get("cached_tokens")
        if request is None or line.get("status") != 200 or not isinstance(cached, int):
            return
        tally = self.result.classes.setdefault(request.kind, Tally())
        tally.total += 1
        tally.exact += request.predicted == cached
        tally.in_range += request.low <= cached <= request.high
        if request.predicted != cached:
            why = _WHY[request.kind]
            name = _text(line["id"])
            self.result.misses.append(Miss(name, request.kind, why, request.predicted, cached, request.low, request.high))


def _text(value: object) -> str:
    return _instance(value, str)


def _instance(value: object, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} wanted, got {shown(value)}")
    return value
