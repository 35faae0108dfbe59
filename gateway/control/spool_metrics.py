"""What was written to files beside the requests, and what was not, as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.written import Written


class SpoolCollector(Collector):
    """Lines of the recording and of the request log; both absent where they are off."""

    def __init__(self, files: Written) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        """Labels are names of files' purposes and reasons, closed sets (FC-62)."""
        recorder, request_log = self._files.recorder, self._files.request_log
        spools = {"record": recorder, "request_log": request_log}
        present = {name: one.spool for name, one in spools.items() if one is not None}
        if not present:
            return
        written = CounterMetricFamily("trunkline_lines_written", "Lines written to a file.", labels=["file"])
        lost = CounterMetricFamily("trunkline_lines_lost", "Lines that did not fit or could not be written.", labels=["file"])
        for name, spool in present.items():
            written.add_metric([name], spool.written)
            lost.add_metric([name], spool.dropped + spool.failed)
        yield from (written, lost)
        if recorder is not None:
            yield _by_reason("trunkline_record_skipped", "Requests that are not in the recording.", recorder.skipped)


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family
