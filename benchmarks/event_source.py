"""KV events for the proxy benchmark, whose engine has no cache: `python -m benchmarks.event_source RANKS` prints their endpoints.

Each rank stores a prompt of 8 blocks ten times a second, and removes the oldest one once it holds 200 of them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque

from events.publish import Publisher
from radix.changes import Removed, Stored, as_tokens

_BATCHES_S = 10.0
_BLOCKS, _BLOCK_TOKENS = 8, 16
_PROMPTS = 200


def main(argv: list[str]) -> int:
    """Publish until killed."""
    chance = random.Random(5)
    ranks = [Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") for _ in range(int(argv[1]))]
    held: list[deque[tuple[int, ...]]] = [deque() for _ in ranks]
    print(json.dumps([[rank.bound_endpoint, rank.bound_replay] for rank in ranks]), flush=True)
    due = time.monotonic()
    while True:
        due += 1 / _BATCHES_S
        for rank, prompts in zip(ranks, held, strict=True):
            hashes = tuple(chance.getrandbits(64) for _ in range(_BLOCKS))
            tokens = as_tokens([chance.randrange(49_000) for _ in range(_BLOCKS * _BLOCK_TOKENS)])
            prompts.append(hashes)
            gone = [Removed(prompts.popleft()[::-1])] if len(prompts) > _PROMPTS else []
            rank.publish([Stored(hashes, None, tokens, _BLOCK_TOKENS), *gone])
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
