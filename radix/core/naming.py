"""How roots are called: the same words in every process. Free of compiled code, so that who only names need not load it."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from radix.core.layout import ROOT_KEY_WORDS
from radix.errors import RadixError
from radix.match import Int32Array


def root_key(namespace: bytes, grain: int, group: int = 0) -> Int32Array:
    """The 16 words that name a root: a digest of the namespace, tokens per block, group."""
    if not 0 < grain < 1 << 16:
        raise RadixError(f"block_tokens must be in 1..65535, got {grain}")
    key = np.zeros(ROOT_KEY_WORDS, np.int32)
    key[:8] = np.frombuffer(blake2b(namespace, digest_size=32).digest(), np.int32)
    key[8:10] = grain, group
    return key
