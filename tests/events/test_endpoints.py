"""Endpoints of ranks."""

from __future__ import annotations

import re

import pytest

from events.endpoints import check_apart, is_queue, queue_url, rank_endpoint
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


@pytest.mark.parametrize(
    ("replay", "ranks"),
    [("tcp://h:5657", 100), ("tcp://h:5558", 1), ("tcp://other:5558", 4), ("tcp://h:0", 4), ("tcp://h:5500", 57)],
)
def test_the_ports_of_all_ranks_fit_beside_each_other(replay: str, ranks: int) -> None:
    check_apart("tcp://h:5557", replay, ranks)


@pytest.mark.parametrize(
    ("replay", "ranks"), [("tcp://h:5558", 2), ("bind+tcp://h:5560", 4), ("tcp://h:5557", 1), ("tcp://h:5500", 58)]
)
def test_a_replay_where_another_rank_announces_is_refused(replay: str, ranks: int) -> None:
    """Rank 1 at 5558 would be asked for a replay, and rank 0's replay socket subscribed to: no view would ever fill."""
    with pytest.raises(EndpointError, match=f"leave room for {ranks} ranks"):
        check_apart("tcp://h:5557", replay, ranks)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000/kv_cache_events"),
        ("https://engine.example/", "https://engine.example/kv_cache_events"),
        ("http://[::1]:8000/base/kv_cache_events", "http://[::1]:8000/base/kv_cache_events"),
    ],
)
def test_a_queue_is_at_its_usual_path_unless_another_is_given(endpoint: str, url: str) -> None:
    assert is_queue(endpoint)
    assert queue_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint", ["http://", "http://*:1", "http://h:99999", "http://h?x=1", "http://u:secret@h:1", "http://[::1"]
)
def test_a_queue_that_cannot_be_asked_is_named_without_its_credentials(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="queue of events") as caught:
        queue_url(endpoint)
    assert "secret" not in str(caught.value)
    assert not is_queue("tcp://h:1")
