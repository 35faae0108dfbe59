"""What each client key takes, as metrics. Labels are names of the keys file, so many at most, and never what a client sends."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.quota import Quotas

_MOST_NAMES = 200


class KeyCollector(Collector):
    """Requests, tokens and refusals by name; names beyond the first 200 of the file are summed up."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        """Nothing where no keys are asked for."""
        counts = self._quotas.counts(_MOST_NAMES)
        if not counts:
            return
        requests = CounterMetricFamily("trunkline_key_requests", "Requests by key and status.", labels=["key", "status"])
        refused = CounterMetricFamily("trunkline_key_refused", "Requests over a limit of their key.", labels=["key", "limit"])
        tokens = CounterMetricFamily("trunkline_key_tokens", "Tokens as engines counted them.", labels=["key", "kind"])
        open_now = GaugeMetricFamily("trunkline_key_in_flight", "Open requests by key.", labels=["key"])
        for name, of_key in counts.items():
            for status_class, count in of_key.requests.items():
                requests.add_metric([name, f"{status_class}xx"], count)
            for limit, count in of_key.refused.items():
                refused.add_metric([name, limit], count)
            tokens.add_metric([name, "prompt"], of_key.prompt_tokens)
            tokens.add_metric([name, "output"], of_key.output_tokens)
            tokens.add_metric([name, "cached"], of_key.cached_tokens)
            open_now.add_metric([name], of_key.in_flight)
        yield from (requests, refused, tokens, open_now)
