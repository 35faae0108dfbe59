"""What the tokenizer remembers, as metrics; nothing while no tokenizer is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.tokenize.cached import CachedTokenizer


class TokenCacheCollector(Collector):
    """Hits, misses and sizes of the token caches, and what the comparison with whole prompts found."""

    def __init__(self, tokenizer: Callable[[], CachedTokenizer | None]) -> None:
        self._tokenizer = tokenizer

    def collect(self) -> Iterator[Metric]:
        """Labels are the names of the caches."""
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return
        counts, lifted = tokenizer.counts, tokenizer.lifted
        hits = CounterMetricFamily("trunkline_token_cache_hits", "Pieces of prompts that were known.", labels=["cache"])
        misses = CounterMetricFamily("trunkline_token_cache_misses", "Pieces of prompts that were not.", labels=["cache"])
        size = GaugeMetricFamily("trunkline_token_cache_bytes", "Memory of what is remembered.", labels=["kind"])
        for name in counts.hits:
            hits.add_metric([name], counts.hits[name])
            misses.add_metric([name], counts.misses[name])
        size.add_metric(["ids"], tokenizer.cache.bytes)
        if lifted is not None:
            hits.add_metric(["lift"], lifted.hits)
            misses.add_metric(["lift"], lifted.misses)
            size.add_metric(["texts"], lifted.bytes)
        yield from (hits, misses, size)
        yield CounterMetricFamily(
            "trunkline_token_cache_checks", "Requests tokenized again as a whole, to compare.", value=counts.checks
        )
        yield CounterMetricFamily(
            "trunkline_token_cache_differences", "Of those the ones with other ids.", value=counts.differences
        )
