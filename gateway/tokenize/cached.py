"""One model's tokenizer with what it remembers: turns of planned chats, segments of rendered ones, long texts of bodies.

Ids are always those of the whole prompt. `planned` and `cut` put a prompt together from what is known and name what is not;
`encode` computes that, in any thread; `remember` and `joined` finish on the loop, which alone reads and changes the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from gateway.tokenize.cache import Key, TokenCache
from gateway.tokenize.lift import LiftedStrings
from gateway.tokenize.plan import learn_plan
from gateway.tokenize.prompt import CHAT_FIELDS, PromptText, Tokenizer
from gateway.tokenize.segments import proven_cutter
from radix.match import Int32Array

_LARGEST_CUT = 1024 * 1024  # characters: hashing more would hold up the loop
_RENDERED_HERE = 16 * 1024  # bytes of JSON beside the texts; about 1 ms of template
_LISTED_HERE = 512  # messages
_MIB = 1024 * 1024


@dataclass(slots=True)
class Hole:
    """A piece of a draft whose ids are not known. key: under which they will be remembered; None: they will not."""

    slot: int
    key: Key | None
    text: str
    add_special_tokens: bool = False


@dataclass(slots=True)
class Draft:
    """A prompt in pieces, some of which are still to be encoded. characters: of those."""

    parts: list[Int32Array | None]
    holes: list[Hole]
    characters: int = 0


@dataclass(slots=True)
class CacheCounts:
    """Hot counters, read at scrape time. Hits and misses are pieces of prompts, by cache."""

    hits: dict[str, int] = field(default_factory=lambda: {"plan": 0, "segments": 0})
    misses: dict[str, int] = field(default_factory=lambda: {"plan": 0, "segments": 0})
    checks: int = 0  # requests tokenized again as a whole
    differences: int = 0  # of those the ones with other ids


class CachedTokenizer:
    """Made in a thread, because proving takes some 50 ms; then the loop's, but for `read`, `encode` and `whole`."""

    def __init__(
        self, tokenizer: Tokenizer, *, segments: bool = True, plan: bool = True, lift: bool = True, budget_mib: int = 64
    ) -> None:
        """Each cache is used where it is switched on and proven; half of the budget is for ids, half for lifted texts."""
        self.tokenizer = tokenizer
        self.counts = CacheCounts()
        half_bytes = budget_mib * _MIB // 2
        self.cache = TokenCache(half_bytes)
        self.lifted = LiftedStrings(half_bytes) if lift else None
        encoder, template = tokenizer.encoder, tokenizer.template
        eos = None if tokenizer.eos is None else encoder.decode([tokenizer.eos], skip_special_tokens=False)
        cutter = proven_cutter(encoder, template, eos=eos) if segments or plan else None
        self.cutter = cutter if segments else None
        self.plan = learn_plan(template, encoder, cutter) if plan else None
        self._ending = encoder.encode(self.plan.ending, add_special_tokens=False) if self.plan else None

    @property
    def caches(self) -> tuple[str, ...]:
        """The caches in use: those that are switched on and were proven."""
        used = {"plan": self.plan, "segments": self.cutter, "lift": self.lifted}
        return tuple(name for name, cache in used.items() if cache is not None)

    @property
    def reads_clock(self) -> bool:
        """Whether the same body may give other ids later."""
        template = self.tokenizer.template
        return template is not None and template.reads_clock

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        return self.tokenizer.vocab_size

    def planned(self, fields: Mapping[str, Any]) -> Draft | None:
        """The draft of a chat body that the plan knows; None where the template has to be run."""
        plan = self.plan
        if plan is None or not CHAT_FIELDS.isdisjoint(fields):
            return None
        kinds = plan.kinds(fields)
        if kinds is None:
            return None
        draft = Draft([], [])
        for key in kinds:
            ids = self.cache.get(key)
            if ids is None:
                kind, content = key
                if not plan.admits(content):
                    return None
                self._open(draft, key, plan.text(kind, content))
            draft.parts.append(ids)
        self._count("plan", draft)
        draft.parts.append(self._ending)
        return draft

    def reads_here(self, fields: Mapping[str, Any], body_bytes: int, *, chat: bool) -> bool:
        """Whether `read` is quick enough for the loop."""
        if body_bytes < _RENDERED_HERE:
            return True
        if not chat:
            return isinstance(fields.get("prompt"), str)
        messages = fields.get("messages")
        if not isinstance(messages, list) or len(messages) > _LISTED_HERE:
            return False
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        return body_bytes - sum(len(content) for content in contents if isinstance(content, str)) < _RENDERED_HERE

    def read(self, fields: Mapping[str, Any], *, chat: bool) -> PromptText | Int32Array:
        """The prompt text of a body, or its ids where they are not made of one text; raises NoTokens. Thread safe."""
        return self.tokenizer.read_chat(fields) if chat else self.tokenizer.read_completion(fields)

    def cut(self, prompt: PromptText | Int32Array) -> Draft:
        """The draft of a prompt text, from segments where they are proven for it."""
        if not isinstance(prompt, PromptText):
            return Draft([prompt], [])
        text, added = prompt.text, prompt.add_special_tokens and not self.tokenizer.encoder.adds_nothing
        if self.cutter is None or added or len(text) > _LARGEST_CUT:
            return Draft([None], [Hole(0, None, text, prompt.add_special_tokens)], len(text))
        draft = Draft([], [])
        for piece in self.cutter.cut(text):
            ids = self.cache.get(piece)
            if ids is None:
                self._open(draft, piece, piece)
            draft.parts.append(ids)
        self._count("segments", draft)
        return draft

    def encode(self, holes: Sequence[Hole]) -> list[Int32Array]:
        """The ids of each hole; raises NoTokens. Thread safe, releases the GIL."""
        encoder = self.tokenizer.encoder
        if holes[0].key is None:
            return [encoder.encode(hole.text, add_special_tokens=hole.add_special_tokens) for hole in holes]
        return encoder.encode_kept([hole.text for hole in holes])

    def remember(self, hole: Hole, ids: Int32Array) -> None:
        """Keep what a hole turned out to be."""
        if hole.key is not None:
            self.cache.put(hole.key, ids)

    def joined(self, draft: Draft) -> Int32Array:
        """The ids of a draft without holes, int32 [n]; the caller may write to them."""
        parts = cast(list[Int32Array], draft.parts)
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def whole(self, fields: Mapping[str, Any], *, chat: bool) -> Int32Array:
        """The ids of a body without any cache; raises NoTokens. Thread safe."""
        return self.tokenizer.chat(fields) if chat else self.tokenizer.completion(fields)

    def estimate_s(self, characters: int) -> float:
        """Seconds that encoding so many characters should take here; below about a millisecond it may run on the loop."""
        return self.tokenizer.estimate_s(characters)

    def drop(self) -> None:
        """Forget everything that was remembered."""
        self.cache.clear()
        if self.lifted is not None:
            self.lifted.clear()

    def _open(self, draft: Draft, key: Key, text: str) -> None:
        draft.holes.append(Hole(len(draft.parts), key, text))
        draft.characters += len(text)

    def _count(self, name: str, draft: Draft) -> None:
        self.counts.misses[name] += len(draft.holes)
        self.counts.hits[name] += len(draft.parts) - len(draft.holes)
