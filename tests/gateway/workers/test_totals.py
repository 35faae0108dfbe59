"""Metrics of several workers as one page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from events.apply import Counts
from gateway.control.metrics import GatewayCollector
from gateway.request import Outcome, TrafficCounts
from gateway.workers.remote_views import RemoteViews
from gateway.workers.totals import ProcessId, Totals
from gateway.workers.wire import StreamState
from tests.gateway.test_place import House, prompt_of

ONE, TWO, THREE = (("worker", pid) for pid in (1, 2, 3))


class Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def page(*metrics: Metric) -> str:
    """A scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(list(metrics)))
    return generate_latest(registry).decode()


def counter(value: float, **labels: str) -> Metric:
    family = CounterMetricFamily("trunkline_requests", "Answered.", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, "Something.", value=value)


def samples(totals: Totals, pages: dict[ProcessId, str], alive: list[ProcessId] | None = None) -> dict[str, float]:
    """The merged page, by name and labels."""
    text = page(*totals.metrics(pages, alive or list(pages)))
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_counters_and_loads_add_up_and_what_is_the_same_does_not() -> None:
    one = page(counter(3, status="2xx"), gauge("trunkline_in_flight", 1), gauge("trunkline_index_blocks", 70))
    two = page(counter(4, status="2xx"), gauge("trunkline_in_flight", 2), gauge("trunkline_index_blocks", 72))
    assert samples(Totals(), {ONE: one, TWO: two}) == {
        'trunkline_requests_total{status="2xx"}': 7,
        "trunkline_in_flight": 3,
        "trunkline_index_blocks": 72,
    }


def test_labels_one_worker_has_not_seen_are_kept() -> None:
    merged = samples(Totals(), {ONE: page(counter(3, status="2xx")), TWO: page(counter(1, status="5xx"))})
    assert merged == {'trunkline_requests_total{status="2xx"}': 3, 'trunkline_requests_total{status="5xx"}': 1}


def test_a_sum_never_falls_when_a_worker_ends() -> None:
    totals = Totals()
    name = 'trunkline_requests_total{status="2xx"}'
    both = {ONE: page(counter(3, status="2xx")), TWO: page(counter(40, status="2xx"))}
    assert samples(totals, both)[name] == 43
    one = {ONE: page(counter(4, status="2xx"))}
    assert samples(totals, one, [ONE, TWO])[name] == 44, "one that did not answer in time"
    assert samples(totals, one, [ONE])[name] == 44, "one that is gone"
    again = {ONE: page(counter(4, status="2xx")), THREE: page(counter(1, status="2xx"))}
    assert samples(totals, again)[name] == 45
    assert samples(totals, again)[name] == 45


def test_a_gauge_of_one_that_is_gone_is_gone() -> None:
    totals = Totals()
    samples(totals, {ONE: page(gauge("trunkline_in_flight", 5)), TWO: page(gauge("trunkline_in_flight", 1))})
    assert samples(totals, {TWO: page(gauge("trunkline_in_flight", 1))})["trunkline_in_flight"] == 1


def test_a_real_page_comes_out_whole_and_twice_as_much() -> None:
    """Every sample of a worker is there; what counts requests doubles, what tells of the index and of replicas does not."""
    house = House()
    house.place(prompt_of(64)).close(Outcome.OK)
    views = RemoteViews(house.fleet)
    name = house.replicas[0].name
    views.learn([StreamState(name, 0, "live", True, False, Counts(batches=7))])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(house.placer, TrafficCounts(requests={("chat", 2): 3}), views))
    text = generate_latest(registry).decode()
    once, twice = samples(Totals(), {ONE: text}), samples(Totals(), {ONE: text, TWO: text})
    assert once == {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert once.keys() == twice.keys()
    grown = {key for key in once if once[key] and twice[key] == 2 * once[key]}
    same = {key for key in once if once[key] and twice[key] == once[key]}
    assert grown | same == {key for key in once if once[key]}
    assert 'trunkline_requests_total{route="chat",status="2xx"}' in grown
    assert f'trunkline_event_batches_total{{rank="0",replica="{name}"}}' in same
    assert all("_seconds_bucket" not in key for key in same)
