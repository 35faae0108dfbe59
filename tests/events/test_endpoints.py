"""Endpoints of ranks."""

from __future__ import annotations

import re

import pytest

from events.endpoints import rank_endpoint
from events.errors import EndpointError


@pytest.mark.parametrize(
    ("endpoint", "rank", "want"),
    [
        ("tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"),
        ("tcp://10.0.0.1:5557", 3, "tcp://10.0.0.1:5560"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("tcp://*:5557", 1, "tcp://*:5558"),
        ("tcp://*:0", 4, "tcp://*:0"),
        ("ipc:///run/kv", 0, "ipc:///run/kv"),
        ("inproc://kv", 2, "inproc://kv_dp2"),
        ("bind+tcp://*:5557", 2, "bind+tcp://*:5559"),
    ],
)
def test_each_rank_has_its_own(endpoint: str, rank: int, want: str) -> None:
    """FC-21: port + rank."""
    assert rank_endpoint(endpoint, rank) == want


@pytest.mark.parametrize(
    ("endpoint", "rank"),
    [
        ("10.0.0.1:5557", 0),
        ("http://h:1", 0),
        ("tcp://host", 0),
        ("tcp://host:port", 0),
        ("tcp://:5557", 0),
        ("ipc://x", 1),
        ("tcp://h:65535", 1),
        ("tcp://h:70000", 0),
        ("bind+tcp://h", 0),
    ],
)
def test_what_cannot_be_one_is_named(endpoint: str, rank: int) -> None:
    with pytest.raises(EndpointError, match=re.escape(endpoint.removeprefix("bind+"))):
        rank_endpoint(endpoint, rank)
