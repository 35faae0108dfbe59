"""What a relay tells about itself: Prometheus metrics, whether it lives, and a line in the log once a minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from events.relay.relay import Relay
from events.types import Freshness

log = logging.getLogger(__name__)

_REPORT_EVERY_S = 60.0
_LABELS = ("replica", "rank")
_IN = {
    "batches": "Batches heard from engines.",
    "events": "Events in them.",
    "bytes": "Payload bytes heard from engines.",
    "gaps": "Holes in the engines' numbers.",
    "replays": "Replays asked for.",
    "restarts": "Engine restarts seen.",
    "decode_errors": "Payloads that could not be read.",
}
_OUT = {
    "entries": "Entries written.",
    "batches": "Batches in them.",
    "bytes": "Bytes of the entries.",
    "snapshots": "Snapshots written.",
    "snapshot_bytes": "Bytes of the snapshots.",
    "epochs": "Times the whole view was told anew.",
    "failures": "Commands that Redis did not answer or refused.",
}
_GAUGES = {
    "blocks": "Blocks in the view.",
    "pending": "Changes waiting to be written.",
    "lag_seconds": "Engine's timestamp to confirmed by Redis, newest batch.",
    "newest_snapshot_bytes": "Size of the newest snapshot.",
    "writing": "1 while this relay writes the stream; 0 while it stands by.",
}


class RelayMetrics(Collector):
    """The relay's counters as metric families."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        """All families, read from the plain counters."""
        lines = [((line.tap.replica, str(line.tap.rank)), line) for line in self._relay.lines]
        for name, text in _IN.items():
            heard = CounterMetricFamily(f"trunkline_relay_in_{name}", text, labels=_LABELS)
            for key, line in lines:
                heard.add_metric(key, float(getattr(line.stream.counts, name)))
            yield heard
        for name, text in _OUT.items():
            written = CounterMetricFamily(f"trunkline_relay_out_{name}", text, labels=_LABELS)
            for key, line in lines:
                written.add_metric(key, float(getattr(line.outlet.counts, name)))
            yield written
        gauges = {name: GaugeMetricFamily(f"trunkline_relay_{name}", text, labels=_LABELS) for name, text in _GAUGES.items()}
        fresh = GaugeMetricFamily("trunkline_relay_view_freshness", "1 for the view's state.", labels=(*_LABELS, "state"))
        for key, line in lines:
            counts = line.outlet.counts
            gauges["blocks"].add_metric(key, line.tap.blocks)
            gauges["pending"].add_metric(key, line.tap.pending)
            gauges["lag_seconds"].add_metric(key, counts.lag_s)
            gauges["newest_snapshot_bytes"].add_metric(key, counts.newest_snapshot_bytes)
            gauges["writing"].add_metric(key, float(line.outlet.writing))
            for state in Freshness:
                fresh.add_metric((*key, state.value), float(line.tap.freshness is state))
        yield from (*gauges.values(), fresh)


def control_app(relay: Relay) -> web.Application:
    """`/metrics`, `/livez`, and `/readyz`: 200 while every stream is written by this relay."""
    registry = CollectorRegistry()
    registry.register(RelayMetrics(relay))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def alive(_: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def ready(_: web.Request) -> web.Response:
        rows = [
            {
                "replica": line.tap.replica,
                "rank": line.tap.rank,
                "writing": line.outlet.writing,
                "freshness": line.tap.freshness.value,
                "blocks": line.tap.blocks,
            }
            for line in relay.lines
        ]
        return web.json_response({"ready": relay.writing, "ranks": rows}, status=200 if relay.writing else 503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/livez", alive), web.get("/readyz", ready)])
    return app


async def report(relay: Relay, *, every_s: float = _REPORT_EVERY_S) -> None:
    """One line per rank and minute, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        for line in relay.lines:
            heard, written = line.stream.counts, line.outlet.counts
            log.info(
                "relayed replica=%s rank=%d freshness=%s blocks=%d batches_in=%d bytes_in=%d entries=%d bytes_out=%d "
                "snapshots=%d lag_ms=%.1f",
                line.tap.replica,
                line.tap.rank,
                line.tap.freshness.value,
                line.tap.blocks,
                heard.batches,
                heard.bytes,
                written.entries,
                written.bytes,
                written.snapshots,
                written.lag_s * 1000,
            )
