"""Plain integers into Prometheus metrics, at scrape time only.

Labels come from closed sets: replica names, reasons, outcomes, routes, status classes (FC-62). Model names and paths of
clients never become labels.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from events.types import Freshness
from gateway.followed import FollowedViews
from gateway.histogram import Histogram
from gateway.place import FleetPlacer
from gateway.request import TrafficCounts


class GatewayCollector(Collector):
    """Everything a scrape of the gateway shows, under the prefix `trunkline_`."""

    def __init__(self, placer: FleetPlacer, traffic: TrafficCounts, views: FollowedViews) -> None:
        self._placer = placer
        self._traffic = traffic
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """One pass over the counters; costs some 100 us for ten replicas."""
        yield from self._traffic_metrics()
        yield from self._placement_metrics()
        yield from self._fleet_metrics()
        yield from self._event_metrics()
        yield from self._index_metrics()

    def _traffic_metrics(self) -> Iterator[Metric]:
        traffic = self._traffic
        requests = CounterMetricFamily("trunkline_requests", "Requests answered.", labels=["route", "status"])
        for (route, status), count in traffic.requests.items():
            requests.add_metric([route, f"{status}xx"], count)
        yield requests
        refused = CounterMetricFamily("trunkline_refused", "Requests the gateway answered itself.", labels=["reason"])
        for reason, count in traffic.refused.items():
            refused.add_metric([reason], count)
        yield refused
        yield _counter("trunkline_retries", "Requests sent again before the first byte.", traffic.retries)
        with_tokens = CounterMetricFamily(
            "trunkline_sent_with_tokens",
            "Requests sent with their token ids, which the engine need not make.",
            labels=["dialect"],
        )
        for dialect, count in traffic.tokens_sent.items():
            with_tokens.add_metric([dialect], count)
        yield with_tokens
        aborts = CounterMetricFamily("trunkline_engine_aborts", "Calls that tell an engine to stop a request.", labels=["result"])
        for result, count in traffic.engine_aborts.items():
            aborts.add_metric([result], count)
        yield aborts
        yield _counter("trunkline_stream_chunks", "Pieces of streamed answers relayed.", traffic.chunks)
        yield _counter("trunkline_received_bytes", "Request body bytes received.", traffic.bytes_up)
        yield _counter("trunkline_sent_bytes", "Answer bytes sent to clients.", traffic.bytes_down)
        yield _counter("trunkline_internal_errors", "Exceptions caught at the data plane's barrier.", traffic.internal_errors)
        yield GaugeMetricFamily("trunkline_open_connections", "Client connections.", value=traffic.open_connections)

    def _placement_metrics(self) -> Iterator[Metric]:
        counts = self._placer.counts
        decisions = CounterMetricFamily("trunkline_decisions", "Choices made.", labels=["policy", "replica", "reason"])
        for (replica, reason), count in counts.decisions.items():
            decisions.add_metric([self._placer.policy.name, replica, reason], count)
        yield decisions
        outcomes = CounterMetricFamily("trunkline_outcomes", "How placed requests ended.", labels=["replica", "outcome"])
        for (replica, outcome), count in counts.outcomes.items():
            outcomes.add_metric([replica, outcome], count)
        yield outcomes
        untokenized = CounterMetricFamily("trunkline_no_tokens", "Requests routed without token ids.", labels=["reason"])
        for reason, count in counts.no_tokens.items():
            untokenized.add_metric([reason], count)
        yield untokenized
        yield _counter("trunkline_prompt_tokens", "Prompt tokens, as engines counted them.", counts.prompt_tokens)
        yield _counter("trunkline_output_tokens", "Output tokens, as engines counted them.", counts.output_tokens)
        yield _counter("trunkline_predicted_cached_tokens", "Cached tokens predicted.", counts.predicted_tokens)
        yield _counter("trunkline_realised_cached_tokens", "Cached tokens engines reported.", counts.realised_tokens)
        yield _counter("trunkline_predictions", "Requests with both figures.", counts.predictions)
        yield _counter("trunkline_exact_predictions", "Those where both were equal.", counts.exact_predictions)
        yield _counter(
            "trunkline_prompt_token_mismatches", "Requests whose engine counted other prompt tokens.", counts.token_mismatches
        )
        yield _histogram("trunkline_ttft_seconds", "Time to first byte of streamed answers.", counts.ttft)
        yield _histogram("trunkline_request_seconds", "Time from placing to the end.", counts.duration)

    def _fleet_metrics(self) -> Iterator[Metric]:
        view = self._placer.fleet.view
        labels = ["replica", "rank"]
        up = GaugeMetricFamily("trunkline_replica_up", "1 while the replica may be chosen.", labels=labels)
        in_flight = GaugeMetricFamily("trunkline_in_flight", "Open requests.", labels=labels)
        queued = GaugeMetricFamily("trunkline_queued_tokens", "Uncached prompt tokens waiting.", labels=labels)
        rate = GaugeMetricFamily("trunkline_prefill_tokens_per_second", "Learned prefill rate.", labels=labels)
        trust = GaugeMetricFamily("trunkline_trust", "Realised over predicted credit.", labels=labels)
        fresh = GaugeMetricFamily("trunkline_view_freshness", "1 for the state the view is in.", labels=[*labels, "state"])
        for holder, (replica, rank) in self._placer.fleet.by_holder.items():
            key = [replica.name, str(rank)]
            up.add_metric(key, float(view.eligible[holder]))
            load = self._placer.fleet.own_load(holder)
            in_flight.add_metric(key, load.in_flight)
            queued.add_metric(key, load.queued_tokens)
            rate.add_metric(key, view.prefill_rate[holder])
            trust.add_metric(key, view.trust[holder])
            for state in Freshness:
                fresh.add_metric([*key, state.value], float(view.freshness[holder] is state))
        yield from (up, in_flight, queued, rate, trust, fresh)

    def _event_metrics(self) -> Iterator[Metric]:
        for name, text in EVENT_COUNTERS.items():
            family = CounterMetricFamily(f"trunkline_event_{name}", text, labels=["replica", "rank"])
            for replica, rank, stream in self._views.streams():
                family.add_metric([replica, str(rank)], float(getattr(stream.counts, name)))
            yield family
        lag = GaugeMetricFamily(
            "trunkline_event_apply_lag_seconds", "Engine's timestamp to applied, last batch.", labels=["replica", "rank"]
        )
        for replica, rank, stream in self._views.streams():
            lag.add_metric([replica, str(rank)], stream.counts.apply_lag_s)
        yield lag

    def _index_metrics(self) -> Iterator[Metric]:
        stats = self._placer.index.stats()
        yield GaugeMetricFamily("trunkline_index_blocks", "Blocks known, over all holders.", value=stats.blocks)
        yield GaugeMetricFamily("trunkline_index_nodes", "Nodes of the radix tree.", value=stats.nodes)
        yield GaugeMetricFamily("trunkline_index_orphans", "Blocks waiting for their parent.", value=stats.orphans)
        yield GaugeMetricFamily("trunkline_index_guesses", "Guesses alive.", value=stats.guesses)
        yield GaugeMetricFamily("trunkline_index_loose", "Blocks without a place.", value=stats.loose)
        yield GaugeMetricFamily("trunkline_index_bytes", "Memory in use for blocks.", value=stats.bytes)
        yield GaugeMetricFamily("trunkline_index_budget_bytes", "What it may use.", value=stats.budget_bytes)
        yield _counter("trunkline_index_evicted", "Blocks given up for the byte budget.", stats.evicted)


EVENT_COUNTERS = {
    "batches": "Batches applied.",
    "events": "Events applied.",
    "bytes": "Payload bytes received.",
    "gaps": "Holes seen in the sequence.",
    "replays": "Replays asked for.",
    "restarts": "Engine restarts seen.",
    "decode_errors": "Payloads that could not be read.",
    "orphans": "Blocks that came before their parent.",
    "unknown_removes": "Removals of blocks never seen.",
    "duplicates": "Batches already applied.",
}


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=histogram.cumulative(), sum_value=histogram.total)
