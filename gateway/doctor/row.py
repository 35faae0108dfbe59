"""A diagnosis as one JSON object, and as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.doctor.types import Diagnosis

Row = dict[str, Any]


def diagnosis_row(diagnosis: Diagnosis) -> Row:
    """healthy, the replicas looked at, and the findings, worst first."""
    return {
        "healthy": diagnosis.healthy,
        "replicas": list(diagnosis.replicas),
        "probed": diagnosis.probed,
        "findings": [
            {
                "severity": finding.severity.value,
                "check": finding.check,
                "replica": finding.replica,
                "rank": finding.rank,
                "what": finding.what,
                "evidence": finding.evidence,
                "fix": finding.fix,
            }
            for finding in diagnosis.findings
        ],
    }


def report(row: Row) -> Iterator[str]:
    """The same in lines."""
    for finding in row["findings"]:
        rank = f"/{finding['rank']}" if finding["rank"] else ""
        where = f"{finding['replica']}{rank}: " if finding["replica"] is not None else ""
        yield f"{finding['severity']:<7} {finding['check']:<14} {where}{finding['what']}"
        yield f"{'':<23}seen: {finding['evidence']}"
        yield f"{'':<23}fix:  {finding['fix']}"
    counts = {name: sum(one["severity"] == name for one in row["findings"]) for name in ("error", "warning", "note")}
    told = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    without = "" if row["probed"] else " (without probes)"
    yield f"{len(row['replicas'])} replicas looked at{without}: {told or 'nothing found'}"
