"""Changing the fleet at run time: off unless TRUNKLINE_ADMIN_TOKEN is set, and only towards allowed networks (FC-58).

The name in a URL is looked up once, every address it has must lie in an allowed network, and the replica is then spoken to at
that very address, so that a name that resolves differently later changes nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec
import orjson
from aiohttp import web

from gateway.check import check_replica
from gateway.config import ReplicaSettings, ReplicaTls
from gateway.errors import ConfigError
from gateway.fleet import Address

log = logging.getLogger(__name__)

AddReplica = Callable[[ReplicaSettings, Address], Awaitable[str]]
RemoveReplica = Callable[[str], Awaitable[bool]]


class Admin:
    """The two changing routes, and who may use them. `add` returns the new replica's name; `remove` whether there was one."""

    def __init__(self, token: str | None, networks: Sequence[str], *, add: AddReplica, remove: RemoveReplica) -> None:
        self._token = (token or "").encode()
        try:
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            raise ConfigError(f"admin_networks: {error}") from error
        self._add = add
        self._remove = remove

    async def add_replica(self, request: web.Request) -> web.Response:
        """POST /replicas with a replica's settings as JSON."""
        if refused := self.refuse(request):
            return refused
        try:
            settings = msgspec.json.decode(await request.read(), type=ReplicaSettings)
            check_replica(settings)
            asked = Address.parse(settings.url)
            address = await self._allowed(asked)
            name = await self._add(_at_address(settings, asked, address), address)
        except (msgspec.DecodeError, ConfigError) as error:
            log.warning("admin refused action=add_replica reason=%s", error)
            return _error(400, str(error))
        log.info("admin action=add_replica replica=%s", name)
        return web.Response(body=orjson.dumps({"name": name}), status=201, content_type="application/json")

    async def remove_replica(self, request: web.Request) -> web.Response:
        """DELETE /replicas/{name}: no new request goes there and its view is dropped; open requests finish."""
        if refused := self.refuse(request):
            return refused
        name = request.match_info["name"]
        if not await self._remove(name):
            return _error(404, f"no replica is called {name!r}")
        log.info("admin action=remove_replica replica=%s", name)
        return web.Response(status=204)

    def refuse(self, request: web.Request) -> web.Response | None:
        """What to answer a request without the token; None where it has it."""
        if not self._token:
            return _error(403, "administration is off: TRUNKLINE_ADMIN_TOKEN is not set")
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token):
            log.warning("admin refused path=%s reason=%s", request.raw_path, "bad token")
            return _error(401, "a valid admin token is required")
        return None

    async def _allowed(self, address: Address) -> Address:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"url: cannot look up {address.host!r}") from error
        hosts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for host in hosts:
            ip = ipaddress.ip_address(host.partition("%")[0])
            if not any(ip in network for network in self._networks):
                raise ConfigError(f"url: {address.host!r} is at {ip}, which is in none of admin_networks")
        return replace(address, host=hosts[0])


def _at_address(settings: ReplicaSettings, asked: Address, address: Address) -> ReplicaSettings:
    """Events come from the very host that was judged, or not at all."""
    moved: dict[str, object] = {}
    if asked.tls and (settings.tls is None or settings.tls.server_name is None):  # its certificate has the name, not the address
        moved["tls"] = msgspec.structs.replace(settings.tls or ReplicaTls(), server_name=asked.host)
    for key in ("events", "replay"):
        endpoint = getattr(settings, key)
        if endpoint is None:
            continue
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        if not endpoint.startswith("tcp://") or host.strip("[]") not in ("*", asked.host):
            raise ConfigError(f"{key}: must be tcp:// at the host of the url, got {endpoint!r}")
        moved[key] = f"tcp://{f'[{address.host}]' if ':' in address.host else address.host}:{port}"
    return msgspec.structs.replace(settings, **moved)


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        body=orjson.dumps({"error": {"message": message, "type": "admin_error"}}), status=status, content_type="application/json"
    )
