"""Cut a prompt text into pieces whose ids can be computed one by one and joined.

A special token splits the text before anything else looks at it, so what stands behind one does not depend on what stands in
front. That holds for tokens that take no white space from their neighbours, that no other token can swallow, and where the
encoder does not treat the start of a text differently: the first two are read off the vocabulary, all is tried out at load.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import numpy as np
import tokenizers

from gateway.errors import NoTokens
from gateway.tokenize.encode import Encoder
from gateway.tokenize.parity import CORPUS, mixtures
from gateway.tokenize.template import ChatTemplate

log = logging.getLogger(__name__)

_MOST_TOKENS = 4  # each costs a search through the text
_PROOFS = 120


class Cutter:
    """Cuts texts behind every one of `tokens`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tuple(tokens)

    def cut(self, text: str) -> list[str]:
        """The pieces, which joined are the text; none is empty, and none at all for an empty text."""
        pieces = [text] if text else []
        for token in self.tokens:
            if token in text:
                pieces = [part for piece in pieces for part in _behind(piece, token)]
        return pieces

    def first_end(self, text: str) -> int:
        """Where the first piece of a text ends; -1 where no token is in it."""
        ends = [at + len(token) for token in self.tokens if (at := text.find(token)) >= 0]
        return min(ends, default=-1)


def _behind(piece: str, token: str) -> list[str]:
    *ended, rest = piece.split(token)
    parts = [part + token for part in ended]
    return [*parts, rest] if rest else parts


def proven_cutter(encoder: Encoder, template: ChatTemplate | None, *, eos: str | None) -> Cutter | None:
    """A cutter behind the tokens that end a model's turns; None where there are none, or where pieces give other ids."""
    able = [token.content for token in encoder.added_tokens if _splits(token, encoder.added_tokens)]
    ends = _turn_ends(template, able) | {eos}
    tokens = [token for token in able if token in ends][:_MOST_TOKENS]
    if not tokens:
        return None
    cutter = Cutter(tokens)
    for text in _proofs(tokens):
        pieces = encoder.encode_all(cutter.cut(text), add_special_tokens=False)
        if not np.array_equal(np.concatenate(pieces), encoder.encode(text, add_special_tokens=False)):
            log.warning("token cache refused tokens=%s text=%r action=%s", tokens, text[:60], "whole prompts")
            return None
    return cutter


def _splits(token: tokenizers.AddedToken, everyone: Sequence[tokenizers.AddedToken]) -> bool:
    """Whether this token is found wherever its text stands, and leaves its neighbours as they are."""
    if not token.content or not token.special or token.normalized or token.lstrip or token.rstrip or token.single_word:
        return False
    # A token that counts only between words looks at the character in front of it, which a cut takes away.
    return not any(other.single_word or _swallows(other.content, token.content) for other in everyone)


def _swallows(other: str, token: str) -> bool:
    """Whether `other` can stand in a text so that it covers a part of `token` and begins before it, or with it and is longer."""
    if other != token and token in other:
        return True
    return any(other.endswith(token[:length]) for length in range(1, min(len(token), len(other))))


def _turn_ends(template: ChatTemplate | None, able: Sequence[str]) -> set[str]:
    """The first token behind each content, over a few short chats; chats that the template refuses tell nothing."""
    ends: set[str] = set()
    for roles in (("user",), ("system", "user"), ("user", "assistant", "user"), ("user", "assistant", "tool")):
        contents = [f"\ue010{number}\ue011" for number in range(len(roles))]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            text = template.render(messages) if template is not None else ""
        except NoTokens:
            continue
        for content in contents:
            _, found, rest = text.partition(content)
            places = {rest.find(token): token for token in able if token in rest}
            if found and places:
                ends.add(places[min(places)])
    return ends


def _proofs(tokens: Sequence[str]) -> list[str]:
    """Texts of the parity corpus with the tokens between them: every text once in front of each, once behind, and mixed."""
    source = random.Random(11)
    texts = [*CORPUS, *mixtures(count=40, seed=5)]
    proofs = [f"{token}{text}{token}\n{text}{token}{token}" for token in tokens for text in texts]
    for _ in range(_PROOFS):
        proofs.append("".join(source.choice(texts) + source.choice((*tokens, "", "\n")) for _ in range(source.randint(2, 6))))
    return [proof for proof in proofs if proof]
