"""What one worker of several gets of limits that are meant for the whole gateway."""

from __future__ import annotations

import math

import msgspec

from gateway.config import Admission, Resilience


def share_of_line(admission: Admission, workers: int) -> Admission:
    """Its part of the waiting line. Limits per rank stay: each worker counts what the others have sent there, too."""
    return msgspec.structs.replace(
        admission,
        waiting_requests=math.ceil(admission.waiting_requests / workers),
        waiting_tokens=math.ceil(admission.waiting_tokens / workers),
    )


def share_of_retries(resilience: Resilience, workers: int) -> Resilience:
    """Its part of the retries that are allowed whatever the load; the share of requests stays one of its own."""
    retries = msgspec.structs.replace(resilience.retries, floor_per_s=resilience.retries.floor_per_s / workers)
    return msgspec.structs.replace(resilience, retries=retries)
