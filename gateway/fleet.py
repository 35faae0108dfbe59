"""The replicas: who they are, how loaded, which may be chosen.

Load is counted by `place.Ticket`s only, one in and one out per request, and never touched by health checks (FC-25). The
policies read `Fleet.view`, whose lists are indexed by holder number and changed in place.
"""

from __future__ import annotations

import hashlib
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from events.types import Freshness
from gateway.cards import ANY_MODEL, Card, merged
from gateway.choose.rates import Rates
from gateway.choose.types import FleetView
from gateway.dialects import Dialect, IdsProof, dialect_named
from gateway.errors import ConfigError
from radix.reading import ReadableIndex


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens, split once."""

    host: str
    port: int
    tls: bool
    base_path: str  # '' or '/something', prefixed to each forwarded path

    @classmethod
    def parse(cls, url: str) -> Address:
        """From http(s)://host[:port][/base]; raises ConfigError naming the URL (without userinfo)."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"replica url is not one: {_redacted(url)!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"replica url must be http(s)://host:port, got {_redacted(url)!r}")
        if parts.username or parts.password:
            raise ConfigError(f"replica url must not carry credentials: {_redacted(url)!r}; use api_key")
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"replica url has a bad port: {_redacted(url)!r}") from None
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def netloc(self) -> str:
        """host:port as a Host field writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole of it, without a slash at its end."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.base_path}"


@dataclass(frozen=True, slots=True)
class EngineTls:
    """How a replica is spoken to by TLS. server_name: the name its certificate must have."""

    context: ssl.SSLContext
    server_name: str


def _redacted(url: str) -> str:
    return url.rsplit("@", 1)[-1]


@dataclass(slots=True, eq=False)
class Replica:
    """One engine endpoint.

    models: the names it serves, learned from its /v1/models (empty until then). cards: what it says of them. healthy,
    last_error: set by `health`.
    draining: gets no new request. ejected: why it gets none for a while, though it passes its checks; set by `guards`. on_trial:
    its next request decides whether it stays. holders: its numbers in the index, by rank.
    """

    name: str
    address: Address
    dialect: Dialect
    api_key: str | None = None
    models: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    healthy: bool = True
    draining: bool = False
    ejected: str | None = None
    on_trial: bool = False
    last_error: str | None = None  # why the last check failed; None while they pass
    down: str | None = None  # the kind of failure it was given up for, a value of `verdict.Failure`
    holders: list[int] = field(default_factory=list)
    tls: EngineTls | None = None
    ids: IdsProof = field(default_factory=IdsProof)

    @property
    def base_model(self) -> str:
        """The name its blocks are filed under: the first that is no adapter's; empty until it has said one."""
        adapters = {card.name for card in self.cards if card.parent is not None}
        return next((name for name in self.models if name not in adapters), self.models[0] if self.models else "")

    @property
    def eligible(self) -> bool:
        """May be chosen for a new request."""
        return self.healthy and not self.draining and self.ejected is None


class Load(NamedTuple):
    """What one holder was given: open requests, uncached prompt tokens not yet prefilled, sequences that decode."""

    in_flight: int = 0
    queued_tokens: int = 0
    decoding: int = 0


NO_LOAD = Load()


class Fleet:
    """All replicas and the view the policies read."""

    def __init__(self, index: ReadableIndex, rates: Rates) -> None:
        self._index = index
        self.rates = rates
        self.replicas: dict[str, Replica] = {}
        self.by_holder: dict[int, tuple[Replica, int]] = {}
        self.view = FleetView()
        self.full: set[int] = set()  # holders that have as much as they may be given at a time
        self.most_requests = self.most_queued_tokens = sys.maxsize  # per holder
        self.on_change: Callable[[], None] = lambda: None  # a holder has room again, or a replica came or went
        self.on_joined: Callable[[Replica], None] = lambda replica: None  # a replica may be chosen that could not be before
        self._elsewhere: dict[int, Load] = {}  # by other workers; part of what the view says
        self._serving: dict[str, frozenset[int] | None] = {}
        self._canonical: dict[str, str] = {}  # served name -> the base model of the replica that serves it
        self._adapters: frozenset[str] = frozenset()  # served names that are those of adapters

    def add(
        self,
        name: str,
        address: Address,
        *,
        dialect: str,
        api_key: str | None = None,
        ranks: int = 1,
        tls: EngineTls | None = None,
    ) -> Replica:
        """A new replica with an empty view; raises ConfigError when the name is taken or the dialect unknown."""
        if name in self.replicas:
            raise ConfigError(f"replica name {name!r} is used twice")
        replica = Replica(name, address, dialect_named(dialect), api_key, tls=tls)
        self.replicas[name] = replica
        self.set_ranks(replica, ranks)
        return replica

    def set_ranks(self, replica: Replica, ranks: int) -> None:
        """How many ranks a replica has; those it has no longer go once they have no request left."""
        for rank in range(len(replica.holders), ranks):
            holder = self._index.holder(replica.name, rank)
            self._index.set_model(holder, replica.base_model)
            replica.holders.append(holder)
            self.by_holder[holder] = (replica, rank)
            self._open_slot(holder, replica, rank)
        while len(replica.holders) > ranks and not self.own_load(replica.holders[-1]).in_flight:
            self._close_slot(replica.holders.pop())
        self._serving.clear()

    def learn_models(self, replica: Replica, models: tuple[str, ...], cards: tuple[Card, ...] = ()) -> None:
        """What the replica says it serves; its blocks belong to the first that is no adapter."""
        if (models, cards) == (replica.models, replica.cards):
            return
        replica.models, replica.cards = models, cards
        self._names_changed()
        for holder in replica.holders:
            self._index.set_model(holder, replica.base_model)

    def models(self) -> tuple[str, ...]:
        """Names served by any replica, in the order they were learned."""
        return tuple(self._canonical)

    def cards(self) -> list[Card]:
        """What is served, one card for each name."""
        known = [card for replica in self.replicas.values() for card in replica.cards]
        named = {card.name for card in known}
        return merged([*known, *(Card(name) for name in self._canonical if name not in named)])

    def canonical(self, model: str) -> str:
        """The name a replica's blocks are filed under: the base model of those it serves; "" for an unknown one."""
        return self._canonical.get(model, "")

    def adapter(self, model: str) -> str | None:
        """The adapter of that name, as events name it; None for a model."""
        return model if model in self._adapters else None

    def holders_beside(self, name: str) -> set[int]:
        """All holders but those of one replica."""
        return {holder for holder, (replica, _) in self.by_holder.items() if replica.name != name}

    def serves_any(self) -> bool:
        """Some replica has not said what it serves; it may be asked for anything."""
        return any(not replica.models for replica in self.replicas.values())

    def holders_serving(self, model: str) -> frozenset[int] | None:
        """Holders that serve the model; None when that is all of them, which is the common case and costs one look-up."""
        if model == ANY_MODEL:
            return None
        if model not in self._serving:
            holders = frozenset(
                holder
                for replica in self.replicas.values()
                if not replica.models or model in replica.models
                for holder in replica.holders
            )
            self._serving[model] = None if len(holders) == len(self.by_holder) else holders
        return self._serving[model]

    def remove(self, name: str) -> None:
        """Forget a replica: its view, its load, its slots (FC-14)."""
        replica = self.replicas.pop(name)
        for holder in replica.holders:
            self._close_slot(holder)
        self._names_changed()
        self.on_change()

    def refresh(self, replica: Replica) -> None:
        """Copy what the replica is into the view; after every change of its health, rates or view."""
        view = self.view
        if replica.holders and bool(view.eligible[replica.holders[0]]) is not replica.eligible:
            if replica.eligible:
                self.on_joined(replica)
            self.on_change()
        for holder in replica.holders:
            rate = self.rates.prefill_rate(holder)
            view.eligible[holder] = replica.eligible
            view.prefill_rate[holder] = rate
            view.trust[holder] = self.rates.trust(holder)
            view.drag_s[holder] = self.rates.drag_s(holder, view.decode_load[holder])
            view.wait_s[holder] = view.queued_tokens[holder] / rate
            view.block_tokens[holder] = self._index.block_tokens(holder)

    def load(self, holder: int, *, requests: int = 0, queued_tokens: int = 0, decoding: int = 0) -> None:
        """Change the load of one holder. Costs a few list stores; called twice or thrice per request."""
        view = self.view
        view.in_flight[holder] += requests
        view.queued_tokens[holder] += queued_tokens
        view.decode_load[holder] += decoding
        view.wait_s[holder] = view.queued_tokens[holder] / view.prefill_rate[holder]
        view.drag_s[holder] = self.rates.drag_s(holder, view.decode_load[holder])
        full = view.in_flight[holder] >= self.most_requests or view.queued_tokens[holder] >= self.most_queued_tokens
        if full is not (holder in self.full):
            self._turned(holder, full)

    def _turned(self, holder: int, full: bool) -> None:
        if full:
            self.full.add(holder)
        else:
            self.full.discard(holder)
            self.on_change()

    def own_load(self, holder: int) -> Load:
        """The load of one holder that comes from this process."""
        view, elsewhere = self.view, self._elsewhere.get(holder, NO_LOAD)
        return Load(
            view.in_flight[holder] - elsewhere.in_flight,
            view.queued_tokens[holder] - elsewhere.queued_tokens,
            view.decode_load[holder] - elsewhere.decoding,
        )

    def set_elsewhere(self, loads: Mapping[int, Load]) -> None:
        """What other workers have given to holders; those not named have nothing from them."""
        for holder in self._elsewhere.keys() | loads.keys():
            new, old = loads.get(holder, NO_LOAD), self._elsewhere.get(holder, NO_LOAD)
            requests, queued_tokens, decoding = (after - before for after, before in zip(new, old, strict=True))
            self.load(holder, requests=requests, queued_tokens=queued_tokens, decoding=decoding)
        self._elsewhere = dict(loads)

    def _names_changed(self) -> None:
        """Looked up by every request, so worked out once per change."""
        self._serving.clear()
        self._canonical = {}
        for replica in self.replicas.values():
            for name in replica.models:
                self._canonical.setdefault(name, replica.base_model)
        cards = (card for replica in self.replicas.values() for card in replica.cards)
        self._adapters = frozenset(card.name for card in cards if card.parent is not None)

    def _close_slot(self, holder: int) -> None:
        del self.by_holder[holder]
        self._elsewhere.pop(holder, None)
        self.view.eligible[holder] = False
        self.full.discard(holder)
        self._index.drop(holder)

    def _open_slot(self, holder: int, replica: Replica, rank: int) -> None:
        view = self.view
        while len(view.eligible) <= holder:
            view.grow()
        order = hashlib.blake2b(f"{replica.name}/{rank}".encode(), digest_size=8).digest()
        view.names[holder] = replica.name
        view.order[holder] = int.from_bytes(order, "little")
        view.queued_tokens[holder] = view.decode_load[holder] = view.in_flight[holder] = 0
        view.freshness[holder] = Freshness.COLD
        self.rates.forget(holder)
        self.refresh(replica)
