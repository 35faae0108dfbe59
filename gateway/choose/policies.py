"""The policies by name. Each looks at the request and the fleet, and answers with one eligible holder."""

from __future__ import annotations

from collections.abc import Callable
from random import Random as RandomSource

from gateway.choose.affine import KvAware, PrefixHash, Session
from gateway.choose.cost import Cost
from gateway.choose.plain import LeastLoaded, PowerOfTwo, Random, RoundRobin
from gateway.choose.types import Policy
from gateway.errors import ConfigError


class Approximate(Cost):
    """As `cost`, by our own history of what was sent where instead of by events; who places asks the history then."""

    name = "approximate"


# Those to whom a match says what we sent, not what engines announced.
BY_HISTORY = frozenset((Approximate.name,))

_POLICIES: dict[str, Callable[[], Policy]] = {
    policy.name: policy for policy in (Cost, KvAware, Approximate, PrefixHash, Session, LeastLoaded, RoundRobin)
}
_RANDOM: dict[str, Callable[[RandomSource], Policy]] = {policy.name: policy for policy in (PowerOfTwo, Random)}
POLICY_NAMES = tuple(sorted([*_POLICIES, *_RANDOM]))


def policy_named(name: str, *, seed: int | None = None) -> Policy:
    """A new policy of that name; raises ConfigError naming those there are. seed: of what it draws; None for any."""
    if name in _POLICIES:
        return _POLICIES[name]()
    if name in _RANDOM:
        return _RANDOM[name](RandomSource(seed))
    raise ConfigError(f"policy {name!r} is not one of {', '.join(POLICY_NAMES)}")
