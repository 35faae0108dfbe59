"""What keeps the gateway going, as Prometheus metrics: breakers, outliers, retries, hedges, the waiting line, the loop's lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.fleet import Fleet
from gateway.guards import CAUSES, Guards
from gateway.plane import DataPlane


class ResilienceCollector(Collector):
    """plane: None where this process serves no clients. Labels: replica names, and causes from a closed set."""

    def __init__(self, guards: Guards, fleet: Fleet, plane: Callable[[], DataPlane | None]) -> None:
        self._guards = guards
        self._fleet = fleet
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """One pass over plain numbers."""
        labels = ["replica", "cause"]
        ejected = GaugeMetricFamily(
            "trunkline_replica_ejected", "1 while a replica gets no request for this cause.", labels=labels
        )
        ejections = CounterMetricFamily("trunkline_ejections", "Times a replica was left alone.", labels=labels)
        warming = GaugeMetricFamily("trunkline_replica_warming", "1 during the slow start.", labels=["replica"])
        for name, replica in self._fleet.replicas.items():
            for cause in CAUSES:
                ejected.add_metric([name, cause], float(replica.ejected == cause))
                ejections.add_metric([name, cause], self._guards.ejections[name, cause])
            warming.add_metric([name], float(replica in self._guards.warming))
        yield from (ejected, ejections, warming)
        plane = self._plane()
        if plane is not None:
            yield from _plane_metrics(plane)


def _plane_metrics(plane: DataPlane) -> Iterator[Metric]:
    counts, retries, desk = plane.counts, plane.retries, plane.desk
    yield GaugeMetricFamily("trunkline_waiting_requests", "Requests that wait for room.", value=desk.waiting)
    yield GaugeMetricFamily("trunkline_waiting_tokens", "Prompt tokens of those.", value=desk.waiting_tokens)
    yield GaugeMetricFamily(
        "trunkline_shedding", "1 while less urgent requests are refused.", value=desk.shedder.least is not None
    )
    yield GaugeMetricFamily("trunkline_loop_lag_seconds", "How late the loop was of late.", value=desk.lag_s)
    yield GaugeMetricFamily("trunkline_retry_budget", "Retries that may be made now.", value=retries.left)
    yield CounterMetricFamily("trunkline_retries_denied", "Retries the budget did not allow.", value=retries.denied)
    yield CounterMetricFamily("trunkline_hedges", "Second copies sent.", value=counts.hedges)
    yield CounterMetricFamily("trunkline_hedges_won", "Second copies that answered first.", value=counts.hedges_won)
