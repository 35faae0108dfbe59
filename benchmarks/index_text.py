"""`python -m benchmarks.index_text`: inserts of text prompts into our own history, against a published 216,000 a second.

Keys of 2 KB: one of 32 shared beginnings of 1 KB, as chats have their system prompts, then 1 KB of their own, made of 2,000
words by Zipf's law, so that many go on alike for a while; 8 holders, one namespace, one thread, CPU time, bytes given, pinned to
one core; medians. `fresh`: new keys into memory that was touched before (`fresh_cold`: into memory that was not); `again`: known
keys once more; `evicting`: a budget of half of what the keys need, and the keys one after another for ever, so that each comes
back after it has gone. `text_insert` is the worst of fresh, again and evicting over 216,000 a second. The same with 8 KB keys,
which stand beside it and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from radix.history import History
from radix.namespace import Namespace

PUBLISHED = 216_000  # inserts of 2 KB keys a second, a router in Rust, one thread; on another machine
PREFIXES = 32
HOLDERS = 8
SEED = 5
COUNTED = ("fresh", "again", "evicting")
NAMESPACE = Namespace("model")
WORDS = 2_000


class Keys:
    """Prompts of one length and who gets them."""

    def __init__(self, key_bytes: int, count: int) -> None:
        chance = random.Random(SEED)
        words = ["".join(chance.choices("etaoinshrdlu", k=chance.randrange(1, 10))).encode() for _ in range(WORDS)]
        weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))

        def text(size: int) -> bytes:
            return b" ".join(chance.choices(words, cum_weights=weights, k=size // 2))[:size]

        shared = [text(key_bytes // 2) for _ in range(PREFIXES)]
        self.keys = [chance.choice(shared) + text(key_bytes - key_bytes // 2) for _ in range(count)]
        self.holders = [chance.randrange(HOLDERS) for _ in range(count)]

    def insert_into(self, history: History) -> float:
        """CPU seconds for each."""
        insert = history.insert
        before = time.process_time()
        for holder, key in zip(self.holders, self.keys, strict=True):
            insert(holder, NAMESPACE, key)
        return (time.process_time() - before) / len(self.keys)


def emptied(history: History) -> History:
    """Without its prompts, on the memory it has touched."""
    for holder in range(HOLDERS):
        history.forget(holder)
    return history


def rates(key_bytes: int, count: int, rounds: int) -> dict[str, float]:
    """Inserts a second by cell, and what the budget left unused."""
    keys = Keys(key_bytes, count)
    spent: dict[str, list[float]] = {}
    for _ in range(rounds):
        history = History(1 << 33)
        spent.setdefault("fresh_cold", []).append(keys.insert_into(history))
        full = history.bytes_used
        emptied(history)
        spent.setdefault("fresh", []).append(keys.insert_into(history))
        spent.setdefault("again", []).append(keys.insert_into(history))
        half = History(full // 2)
        keys.insert_into(half)
        spent.setdefault("evicting", []).append(keys.insert_into(half))
        spent.setdefault("matched", []).append(_match_all(half, keys))
    found = {name: 1 / median(values) for name, values in spent.items()}
    found["evicting_overhead"] = half.reserved_bytes / half.bytes_used
    return found


def _match_all(history: History, keys: Keys) -> float:
    before = time.process_time()
    for key in keys.keys:
        history.match(NAMESPACE, key)
    return (time.process_time() - before) / len(keys.keys)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m benchmarks.index_text`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index_text", description=__doc__, epilog="example: python -m benchmarks.index_text --json"
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each cell (default 5)")
    parser.add_argument("--keys", type=int, default=40_000, help="keys of 2 KB, a quarter of it of 8 KB (default 40000)")
    parser.add_argument("--core", type=int, default=0, help="the core to run on (default 0)")
    parser.add_argument("--json", action="store_true", help="last line of stdout: one JSON object with `ratios` and `cells`")
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, {args.core})
    stream = sys.stderr if args.json else sys.stdout
    cells = []
    worst = 0.0
    for key_bytes, count in ((2048, args.keys), (8192, args.keys // 4)):
        found = rates(key_bytes, count, args.rounds)
        for name, value in found.items():
            cells.append({"name": name, "key_bytes": key_bytes, "value": value})
            print(f"{name:20} {key_bytes} B  {value:12,.2f}", file=stream, flush=True)
        if key_bytes == 2048:
            worst = min(found[name] for name in COUNTED) / PUBLISHED
    print(f"text_insert          worst {worst:6.2f}", file=stream)
    if args.json:
        print(json.dumps({"ratios": {"text_insert": worst}, "cells": cells}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
