"""What the engine counts, in Prometheus words; read at scrape time, so that stepping pays for plain integers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from replicas.engine import Engine

_PREFIX = "trunkline_replica_"


class EngineCollector(Collector):
    """Turns the counters of one engine, and of the server before it, into metrics."""

    def __init__(self, engine: Engine, tokenized_requests: Callable[[], int]) -> None:
        self._engine = engine
        self._tokenized_requests = tokenized_requests

    def collect(self) -> Iterator[Metric]:
        """All metrics of the engine, at this moment."""
        counters, pool = self._engine.counters, self._engine.pool
        yield GaugeMetricFamily(_PREFIX + "requests_running", "Sequences that hold blocks.", self._engine.running)
        yield GaugeMetricFamily(_PREFIX + "requests_waiting", "Sequences in line.", self._engine.waiting)
        for name, help_text, value in (
            ("tokenized_requests", "Requests that came as text and were tokenized here.", self._tokenized_requests()),
            ("prompt_tokens", "Prompt tokens of requests that got their first token.", counters.prompt_tokens),
            ("cached_tokens", "Prompt tokens of those found in the prefix cache.", counters.cached_tokens),
            ("generated_tokens", "Tokens generated.", counters.generated_tokens),
            ("preemptions", "Sequences that had to give up their blocks.", counters.preemptions),
            ("failed_steps", "Steps that ended in an error.", counters.failed_steps),
        ):
            yield CounterMetricFamily(_PREFIX + name, help_text, value)
        blocks = GaugeMetricFamily(_PREFIX + "blocks", "KV blocks by state.", labels=["state"])
        used, cached = pool.used_blocks, pool.idle_cached_blocks
        for state, count in (("used", used), ("cached", cached), ("empty", pool.num_blocks - used - cached)):
            blocks.add_metric([state], count)
        yield blocks
        yield SummaryMetricFamily(
            _PREFIX + "step_seconds", "Time of engine steps.", count_value=counters.steps, sum_value=counters.step_seconds
        )
        yield GaugeMetricFamily(
            _PREFIX + "prefill_tokens_per_second", "Speed of recent steps that prefilled, smoothed.", counters.prefill_rate
        )


class MetricsPage:
    """A registry of its own with one engine in it; tokenized_requests is asked at scrape time."""

    def __init__(self, engine: Engine, tokenized_requests: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine, tokenized_requests))

    def render(self) -> bytes:
        """The page as Prometheus reads it."""
        return generate_latest(self._registry)
