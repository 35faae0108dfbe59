"""Which failed checks speak against a replica, and which end what it held."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from gateway.verdict import BadAnswer, Failure, counts, failure_of

KEY = ConnectionKey("h", 1, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "failure", "empties"),
    [
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError()), Failure.REFUSED, True),
        (aiohttp.ServerDisconnectedError(), Failure.RESET, True),
        (aiohttp.ClientOSError(104, "reset"), Failure.RESET, True),
        (BadAnswer("/health answered 500"), Failure.STATUS, True),
        (TimeoutError(), Failure.TIMEOUT, False),
        (aiohttp.ServerTimeoutError(), Failure.TIMEOUT, False),
        (aiohttp.ConnectionTimeoutError(), Failure.TIMEOUT, False),
        (aiohttp.ClientPayloadError(), Failure.OTHER, True),
    ],
)
def test_failures_have_kinds(error: Exception, failure: Failure, empties: bool) -> None:
    assert (failure_of(error), failure_of(error).empties) == (failure, empties)


@pytest.mark.parametrize(
    ("failure", "late_s", "progressed", "expected"),
    [
        (Failure.TIMEOUT, 0.0, False, True),
        (Failure.TIMEOUT, 0.4, False, True),
        (Failure.TIMEOUT, 0.5, False, False),
        (Failure.TIMEOUT, 0.0, True, False),
        (Failure.REFUSED, 5.0, True, True),
        (Failure.STATUS, 5.0, True, True),
    ],
)
def test_lateness_is_excused_where_it_was_ours_or_streams_go_on(
    failure: Failure, late_s: float, progressed: bool, expected: bool
) -> None:
    """FC-32."""
    assert counts(failure, timeout_s=2.0, late_s=late_s, progressed=progressed) is expected
