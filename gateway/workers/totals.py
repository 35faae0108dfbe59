"""One page of metrics from those of several processes.

Counters and histograms are summed, and keep what a worker counted before it ended, so that a sum never falls. Of gauges, loads
are summed; what all workers have from one source, or each learns of a replica for itself, is not: the highest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

# Streams and the index are the index process's, told to all; rates and trust are each worker's own estimate of one thing.
_SAME = (
    "trunkline_event_",
    "trunkline_index_",
    "trunkline_prefill_tokens_per_second",
    "trunkline_loop_lag_seconds",
    "trunkline_replica_ejected",
    "trunkline_replica_up",
    "trunkline_replica_warming",
    "trunkline_shedding",
    "trunkline_trust",
    "trunkline_view_freshness",
)
_OWN = "trunkline_index_guesses"

ProcessId = tuple[str, int]  # name, process id
_Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels


class Totals:
    """Adds pages up, scrape by scrape."""

    def __init__(self) -> None:
        self._last: dict[ProcessId, dict[_Key, float]] = {}  # by process: what it had counted when it was last seen
        self._ended: dict[_Key, float] = {}  # of processes that are gone

    def metrics(self, pages: Mapping[ProcessId, str], alive: Iterable[ProcessId]) -> Iterator[Metric]:
        """pages: of those that answered, by process; alive: all that run, some of which may not have answered."""
        self._retire(set(alive) | set(pages))
        families: dict[str, Metric] = {}
        values: dict[_Key, float] = {}
        for process, page in pages.items():
            counted: dict[_Key, float] = {}
            for family in text_string_to_metric_families(page):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    key = (sample.name, tuple(sorted(sample.labels.items())))
                    if family.name.startswith(_SAME) and family.name != _OWN:
                        values[key] = max(values.get(key, sample.value), sample.value)
                    elif family.type == "gauge":
                        values[key] = values.get(key, 0.0) + sample.value
                    else:
                        counted[key] = sample.value
            self._last[process] = counted
        for of_process in [self._ended, *self._last.values()]:
            for key, value in of_process.items():
                values[key] = values.get(key, 0.0) + value
        yield from _filled(families, values)

    def _retire(self, alive: set[ProcessId]) -> None:
        for process in self._last.keys() - alive:
            for key, value in self._last.pop(process).items():
                self._ended[key] = self._ended.get(key, 0.0) + value


def _filled(families: dict[str, Metric], values: dict[_Key, float]) -> Iterator[Metric]:
    suffixes = ("_total", "_bucket", "_sum", "_count", "")
    for (name, labels), value in values.items():
        owner = next((families[base] for suffix in suffixes if (base := name.removesuffix(suffix)) in families), None)
        if owner is not None:
            owner.add_sample(name, dict(labels), value)
    return iter(families.values())
