"""What a relay may be told to follow, and what it refuses."""

from __future__ import annotations

import pytest

from events.errors import EndpointError
from events.relay.store import check_url, shown_url
from events.relay.target import Target, parse_target
from events.types import EventsError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a=tcp://h:5557", Target("a", "tcp://h:5557")),
        ("a=tcp://h:5557,tcp://h:5657,ranks=4,topic=kv", Target("a", "tcp://h:5557", "tcp://h:5657", 4, "kv")),
        ("10.0.0.1:8000=tcp://h:1,engine=sglang", Target("10.0.0.1:8000", "tcp://h:1", repeats_stores=True)),
        ("a=tcp://h:1,engine=vllm", Target("a", "tcp://h:1")),
        ("a=bind+tcp://0.0.0.0:5600", Target("a", "bind+tcp://0.0.0.0:5600")),
        ("a=http://h:8000,ranks=2,block_tokens=32", Target("a", "http://h:8000", None, 2, "", True, 32)),
    ],
)
def test_a_target_is_read(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tcp://h:1", "want NAME=EVENTS"),
        ("=tcp://h:1", "want NAME=EVENTS"),
        ("a b=tcp://h:1", "want NAME=EVENTS"),
        ("a=h:1", "--replica a: event endpoint must be"),
        ("a=tcp://*:5557", "names no host"),
        ("a=tcp://h:1,tcp://h", "needs a host and a port"),
        ("a=tcp://h:1,ranks=0", "ranks must be a number, got '0'"),
        ("a=tcp://h:1,ranks=x", "ranks must be a number, got 'x'"),
        ("a=tcp://h:65535,ranks=2", "would need port 65536"),
        ("a=tcp://h:1,engine=llama", "engine must be one of vllm"),
        ("a=tcp://h:1,colour=red", "unknown option 'colour'"),
        ("a=tcp://h:1,ranks=1,again", "'again' is not key=value"),
        ("a=http://h:1,tcp://h:2", "has no replay"),
        ("a=http://:1", "must be http"),
    ],
)
def test_a_target_that_cannot_be_followed_is_named(text: str, why: str) -> None:
    with pytest.raises(EndpointError, match=why.replace("*", r"\*").replace("+", r"\+")):
        parse_target(text)


@pytest.mark.parametrize("url", ["redis://h:6379", "rediss://u:p@h:6379/2", "unix:///run/redis.sock", "redis://h"])
def test_a_usable_url_is_taken(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://u:geheim@h:1",
        "redis://",
        "redis://:geheim@h:99999",
        "redis://:geheim@h:0",
        "redis://:geheim@h:6379?colour=red&password=geheim",
        "geheim",
        "redis://:geheim@h:6379/not-a-number?db=x",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_secrets(url: str) -> None:
    """FC-59: no password in an error."""
    with pytest.raises(EventsError) as raised:
        check_url(url)
    assert "geheim" not in str(raised.value)


def test_what_is_shown_of_a_url_has_no_secret() -> None:
    """FC-59: also where the URL is strange."""
    assert shown_url("rediss://user:pass%40word@h:6379/0?ssl_ca_certs=x&password=p") == "rediss://h:6379/0"
    assert shown_url("redis://a@b:pass@h:1") == "redis://h:1"
    assert shown_url("unix:///run/redis.sock?password=p") == "unix:///run/redis.sock"
    assert shown_url("secret") == "..."
