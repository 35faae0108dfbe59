"""What settings must satisfy beyond their types; `serve` and `check-config` ask here, so that both answer the same."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from events.endpoints import rank_endpoint
from events.errors import EndpointError
from gateway.auth import Keys
from gateway.config import ReplicaSettings, Settings
from gateway.errors import ConfigError
from gateway.fleet import Address


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
    for network in settings.admin_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"admin_networks: {error}") from error
    if settings.api_keys_file:
        Keys.load(Path(settings.api_keys_file))


def check_replica(replica: ReplicaSettings) -> str:
    """The name one replica will have; raises ConfigError when its URL or endpoints can not be."""
    address = Address.parse(replica.url)
    for key in ("events", "replay"):
        endpoint = getattr(replica, key)
        if endpoint is None:
            continue
        if not endpoint.isprintable() or " " in endpoint:
            raise ConfigError(f"{key}: {endpoint!r} is no endpoint")
        try:
            rank_endpoint(endpoint.replace("*", address.host, 1), replica.ranks - 1)
        except EndpointError as error:
            raise ConfigError(f"{key}: {error}") from error
    return replica.name or address.netloc
