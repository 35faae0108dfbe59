"""What settings must satisfy beyond their types; `serve` and `check-config` ask here, so that both answer the same."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from events.endpoints import check_apart, is_queue, queue_url, rank_endpoint
from events.errors import EndpointError
from events.relay.store import check_url
from events.types import EventsError
from gateway.apis.passing import check_entries
from gateway.auth import Keys
from gateway.config import ReplicaSettings, Settings
from gateway.errors import ConfigError
from gateway.fleet import Address
from gateway.tls import check_tls


def check_settings(settings: Settings) -> None:
    """Raises ConfigError naming the key and the value. Looks at the keys file, at nothing else outside."""
    if not settings.replicas:
        raise ConfigError("replicas: none given; use --replica URL or `replicas:` in the file")
    names: dict[str, int] = {}
    for number, replica in enumerate(settings.replicas):
        where = f"replicas[{number}]"
        try:
            name = check_replica(replica)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if name in names:
            raise ConfigError(f"{where}.name: {name!r} is also that of replicas[{names[name]}]")
        names[name] = number
        if replica.via == "redis" and settings.redis is None:
            raise ConfigError(f"{where}.via: redis is not set")
    if settings.redis is not None:
        try:
            check_url(settings.redis.url)
        except EventsError as error:
            raise ConfigError(f"redis.url: {error}") from error
    for network in settings.admin_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"admin_networks: {error}") from error
    check_entries(settings.pass_through)
    for alias, target in settings.models.aliases.items():
        if not alias or target in settings.models.aliases or not target:
            raise ConfigError(f"models.aliases: {alias!r:.100} stands for {target!r:.100}, which must be the name of a model")
    check_tls(settings)
    if settings.api_keys_file:
        Keys.load(Path(settings.api_keys_file))


def check_replica(replica: ReplicaSettings) -> str:
    """The name one replica will have; raises ConfigError when its URL or endpoints can not be."""
    address = Address.parse(replica.url)
    if replica.tls is not None and not address.tls:
        raise ConfigError(f"tls: the url is not https://, got {address.url!r}")
    for key in ("events", "replay"):
        endpoint = getattr(replica, key)
        if endpoint is None or (key == "events" and _is_good_queue(replica)):
            continue
        if not endpoint.isprintable() or " " in endpoint:
            raise ConfigError(f"{key}: {endpoint!r} is no endpoint")
        try:
            rank_endpoint(endpoint.replace("*", address.host, 1), replica.ranks - 1)
            if key == "replay" and replica.events is not None:
                check_apart(replica.events, endpoint, replica.ranks)
        except EndpointError as error:
            raise ConfigError(f"{key}: {error}") from error
    return replica.name or address.netloc


def _is_good_queue(replica: ReplicaSettings) -> bool:
    """Whether its events are polled; raises ConfigError when they cannot be."""
    if replica.events is None or not is_queue(replica.events):
        return False
    if replica.replay is not None:
        raise ConfigError(f"replay: a queue that is polled has none, got {replica.replay!r}")
    try:
        queue_url(replica.events)
    except EndpointError as error:
        raise ConfigError(f"events: {error}") from error
    return True
