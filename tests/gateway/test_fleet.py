"""Replica addresses and the fleet's book of who serves what."""

from __future__ import annotations

import pytest

from gateway.choose.rates import Rates
from gateway.errors import ConfigError
from gateway.fleet import Address, Fleet
from radix.index import Index


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:8000", Address("a", 8000, False, "")),
        ("http://a", Address("a", 80, False, "")),
        ("https://a/base/", Address("a", 443, True, "/base")),
        ("http://[::1]:9", Address("::1", 9, False, "")),
    ],
)
def test_addresses_are_split_once(url: str, expected: Address) -> None:
    assert Address.parse(url) == expected


def test_an_ipv6_address_is_bracketed_where_http_wants_it() -> None:
    assert Address.parse("http://[::1]:9").netloc == "[::1]:9"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "a:8000", "http://", "http://a:port", "http://u:hunter22@a"])
def test_bad_addresses_are_refused_without_repeating_credentials(url: str) -> None:
    """FC-58: only http(s), and no credentials in a URL."""
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    assert "hunter22" not in str(caught.value)


def test_a_name_is_used_once_and_a_dialect_must_exist() -> None:
    fleet = Fleet(Index(), Rates())
    fleet.add("a", Address.parse("http://a"), dialect="openai")
    with pytest.raises(ConfigError, match="'a' is used twice"):
        fleet.add("a", Address.parse("http://b"), dialect="openai")
    with pytest.raises(ConfigError, match="'morse'"):
        fleet.add("b", Address.parse("http://b"), dialect="morse")


def test_a_replica_that_never_said_what_it_serves_may_be_asked_for_anything() -> None:
    fleet = Fleet(Index(), Rates())
    replica = fleet.add("a", Address.parse("http://a"), dialect="openai")
    assert fleet.serves_any()
    assert fleet.holders_serving("x") is None
    fleet.learn_models(replica, ("m",))
    assert not fleet.serves_any()
    assert fleet.holders_serving("x") == frozenset()
    assert fleet.holders_serving("m") is None
    assert fleet.models() == ("m",)


def test_ranks_are_holders_of_their_own() -> None:
    """FC-21: credit and load are kept per (replica, rank)."""
    fleet = Fleet(Index(), Rates())
    replica = fleet.add("a", Address.parse("http://a"), dialect="openai", ranks=2)
    first, second = replica.holders
    fleet.load(second, requests=1, queued_tokens=50)
    assert fleet.view.in_flight[first] == 0
    assert fleet.view.in_flight[second] == 1
    assert fleet.by_holder[second] == (replica, 1)
