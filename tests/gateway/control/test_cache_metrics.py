"""The token caches in /metrics."""

from __future__ import annotations

from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry, generate_latest

from gateway.control.cache_metrics import TokenCacheCollector
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.prompt import Tokenizer
from tests.fakes.tokenizer_folder import write_tokenizer_folder
from tests.gateway.tokenize.test_cached import LONG, body, ids_of
from tests.gateway.tokenize.test_template import CHATML


def scraped(tokenizer: CachedTokenizer | None) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TokenCacheCollector(lambda: tokenizer))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_hits_misses_and_sizes_are_told(tmp_path: Path) -> None:
    cached = CachedTokenizer(Tokenizer.load(write_tokenizer_folder(tmp_path, template=CHATML)))
    for number in range(3):
        ids_of(cached, body(("system", LONG), ("user", f"hello {number}")))
    ids_of(cached, orjson.dumps({"prompt": "hello"}), chat=False)
    cached.counts.checks, cached.counts.differences = 5, 1
    told = scraped(cached)
    assert cached.lifted is not None
    assert told.pop('trunkline_token_cache_bytes{kind="ids"}') == cached.cache.bytes > 0
    assert told.pop('trunkline_token_cache_bytes{kind="texts"}') == cached.lifted.bytes > 0
    assert told == {
        'trunkline_token_cache_hits_total{cache="plan"}': 2,
        'trunkline_token_cache_hits_total{cache="segments"}': 0,
        'trunkline_token_cache_hits_total{cache="lift"}': 2,
        'trunkline_token_cache_misses_total{cache="plan"}': 4,
        'trunkline_token_cache_misses_total{cache="segments"}': 1,
        'trunkline_token_cache_misses_total{cache="lift"}': 1,
        "trunkline_token_cache_checks_total": 5,
        "trunkline_token_cache_differences_total": 1,
    }


def test_nothing_is_told_of_what_is_not_there(tmp_path: Path) -> None:
    assert scraped(None) == {}
    off = CachedTokenizer(Tokenizer.load(write_tokenizer_folder(tmp_path, template=CHATML)), lift=False)
    assert not any("lift" in name or "texts" in name for name in scraped(off))
