"""What a failed health check says about a replica: whether it counts, and whether what the replica held is gone.

A refused connection means that no process listens. A check that got no answer in time may mean a dead engine, a busy one, or that
this very process was not given the processor: only the first of these is the replica's death (FC-32).
"""

from __future__ import annotations

from enum import Enum

import aiohttp

from gateway.errors import GatewayError

STARVED_SHARE = 0.25  # of the time a check may take: a loop that stood still for longer can not blame the replica


class Failure(Enum):
    """How a check failed; the value stands in logs and on the control plane."""

    REFUSED = "refused"
    RESET = "reset"
    STATUS = "status"  # it answered, with an error
    TIMEOUT = "timeout"
    OTHER = "other"

    @property
    def empties(self) -> bool:
        """The process is gone or broken, and its cache with it. Of one that is only late nothing is known."""
        return self is not Failure.TIMEOUT


class BadAnswer(GatewayError):
    """A page answered, but not with what it has to."""


def failure_of(error: Exception) -> Failure:
    """The kind of an exception that a check ended with."""
    if isinstance(error, TimeoutError):  # of a connection, too: a full backlog is not a closed port
        return Failure.TIMEOUT
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure.REFUSED
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return Failure.RESET
    return Failure.STATUS if isinstance(error, BadAnswer) else Failure.OTHER


def counts(failure: Failure, *, timeout_s: float, late_s: float, progressed: bool) -> bool:
    """Whether a failure speaks against the replica.

    late_s: how long our own loop did not turn during the check. progressed: answers of the replica went on during it.
    """
    if failure is not Failure.TIMEOUT:
        return True
    return not progressed and late_s < timeout_s * STARVED_SHARE
