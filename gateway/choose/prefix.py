"""The hash of a prompt's start, which gives equal prefixes an equal order of holders."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from radix.match import Int32Array

_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def prefix_hash(tokens: Int32Array, limit: int = 1536) -> int:
    """64 bits of the first `limit` ids, the same on every machine and in every process; 0 for no tokens.

    tokens: int32 [n]. Pass as `limit` the first branching point where one is known: every chat of a model shares its first
    blocks.
    """
    if not len(tokens):
        return 0
    start = np.ascontiguousarray(tokens[:limit], dtype="<i4")
    return int.from_bytes(blake2b(start.tobytes(), digest_size=8).digest(), "little")


def rendezvous(order: int, prefix: int) -> int:
    """The weight of a holder (by its stable random number) for a prefix; the highest weight wins.

    A holder that leaves only moves the prefixes it had, as all other weights stay.
    """
    mixed = ((order ^ prefix) * _ODD) & _MASK
    mixed = ((mixed ^ (mixed >> 32)) * _ODD) & _MASK
    return mixed ^ (mixed >> 29)
