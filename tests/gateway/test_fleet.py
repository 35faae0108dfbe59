"""Replica addresses and the fleet's book of who serves what."""

from __future__ import annotations

import pytest

from gateway.choose.rates import Rates
from gateway.errors import ConfigError
from gateway.fleet import Address, Fleet, Load
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


def test_what_other_workers_gave_counts_in_prices_and_not_as_our_own() -> None:
    """FC-25: loads are given back exactly, whatever is heard of others meanwhile."""
    fleet = Fleet(Index(), Rates())
    holder = fleet.add("a", Address.parse("http://a:1"), dialect="openai").holders[0]
    fleet.load(holder, requests=1, queued_tokens=100)
    alone_s = fleet.view.wait_s[holder]
    fleet.set_elsewhere({holder: Load(2, 300, 4)})
    assert fleet.view.wait_s[holder] == pytest.approx(4 * alone_s)
    assert (fleet.view.in_flight[holder], fleet.view.decode_load[holder]) == (3, 4)
    assert fleet.own_load(holder) == Load(1, 100, 0)
    fleet.set_elsewhere({holder: Load(1, 0, 0)})
    fleet.load(holder, requests=-1, queued_tokens=-100)
    assert fleet.own_load(holder) == Load()
    fleet.set_elsewhere({})
    assert (fleet.view.in_flight[holder], fleet.view.queued_tokens[holder], fleet.view.decode_load[holder]) == (0, 0, 0)


def test_a_number_given_again_starts_without_what_others_gave_the_old_one() -> None:
    """FC-14."""
    fleet = Fleet(Index(), Rates())
    holder = fleet.add("a", Address.parse("http://a:1"), dialect="openai").holders[0]
    fleet.set_elsewhere({holder: Load(2, 300, 4)})
    fleet.remove("a")
    assert fleet.add("b", Address.parse("http://b:1"), dialect="openai").holders[0] == holder
    assert (fleet.own_load(holder), fleet.view.in_flight[holder]) == (Load(), 0)
