"""One JSON object for programs. It holds no wall time, so the same seed gives the same bytes (FC-66)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import orjson

from simulations.report.summary import Slo, Summary
from simulations.run import FleetSpec
from simulations.traces.columns import Trace


def to_json(trace: Trace, spec: FleetSpec, slo: Slo, seed: int, summaries: Sequence[Summary]) -> str:
    """One line: what was replayed, with which settings, and `policies.NAME` with each policy's figures."""
    report = {
        "trace": {
            "name": trace.name,
            "sha256": trace.digest,
            "requests": len(trace),
            "block_tokens": trace.block_tokens,
            "input_tokens": int(trace.input_tokens.sum()),
            "output_tokens": int(trace.output_tokens.sum()),
            "notes": trace.notes,
        },
        "seed": seed,
        "settings": asdict(spec),
        "slo": asdict(slo),
        "policies": {summary.policy: asdict(summary) for summary in summaries},
    }
    return orjson.dumps(report).decode()
