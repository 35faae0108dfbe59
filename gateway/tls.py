"""TLS towards clients and engines, from files that may change while the gateway runs.

Every handshake uses the context that was made last of the files; connections that are open keep theirs. Files that make no
context, such as a certificate whose key has not been written yet, are told once and change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.config import ListenTls, ReplicaTls, Settings
from gateway.errors import ConfigError
from gateway.fleet import Address, EngineTls

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Swapped(ssl.SSLContext):
    """A context for loops and sessions whose handshakes are those of `current`, which may be exchanged at any time."""

    current: ssl.SSLContext
    most: int | None = None  # handshakes and connections at a time
    _alive: weakref.WeakSet[ssl.SSLObject]

    @classmethod
    def of(cls, current: ssl.SSLContext) -> Swapped:
        """One that begins with `current`."""
        made = cls(current.protocol)
        made.current = current
        made._alive = weakref.WeakSet()
        return made

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake; raises ConnectionRefusedError above `most`, which closes the connection."""
        if self.most is not None:
            if len(self._alive) >= self.most:
                raise ConnectionRefusedError("too many connections")
            wrapped = self.current.wrap_bio(*args, **options)
            self._alive.add(wrapped)
            return wrapped
        return self.current.wrap_bio(*args, **options)


@dataclass(slots=True)
class _Source:
    """A context and what it is made of. stamp: of the files when they were read last."""

    context: Swapped
    make: Callable[[], ssl.SSLContext]
    paths: Sequence[str]
    stamp: _Stamp
    complaint: str | None = None


@dataclass(slots=True)
class Certificates:
    """All contexts of one process; `keep` looks after their files."""

    _sources: list[_Source] = field(default_factory=list)
    _clients: dict[ReplicaTls, Swapped] = field(default_factory=dict)

    def server(self, settings: ListenTls, where: str) -> Swapped:
        """For connections of clients; raises ConfigError naming the key under `where` and the file."""
        return self._made(lambda: server_context(settings, where), (settings.cert, settings.key, settings.client_ca))

    def engine(self, own: ReplicaTls | None, default: ReplicaTls | None, address: Address) -> EngineTls | None:
        """For connections to one replica; None where it is spoken to in the clear. Raises ConfigError.

        Replicas with the same settings share one: the system's authorities alone take 20 ms and half a megabyte.
        """
        if not address.tls:
            return None
        settings = merged(own, default)
        name = settings.server_name or address.host
        alike = msgspec.structs.replace(settings, server_name=None)
        context = self._clients.get(alike)
        if context is None:
            paths = (settings.ca, settings.cert, settings.key)
            context = self._clients[alike] = self._made(lambda: client_context(alike, "tls"), paths)
        return EngineTls(context, name)

    def look(self) -> None:
        """Make those contexts anew whose files have changed."""
        for source in self._sources:
            stamp = _stamp(source.paths)
            if stamp == source.stamp and source.complaint is None:
                continue
            source.stamp = stamp
            try:
                source.context.current = source.make()
            except ConfigError as error:
                if str(error) != source.complaint:
                    log.error("certificate not changed, the last one stays error=%s", error)
                source.complaint = str(error)
            else:
                source.complaint = None
                log.info("certificate read again files=%s", ",".join(source.paths))

    async def keep(self) -> None:
        """Look every few seconds; for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def _made(self, make: Callable[[], ssl.SSLContext], paths: Sequence[str | None]) -> Swapped:
        given = [path for path in paths if path is not None]
        stamp = _stamp(given)  # before they are read: what changes meanwhile is then read again
        context = Swapped.of(make())
        if given:
            self._sources.append(_Source(context, make, given, stamp))
        return context


def merged(own: ReplicaTls | None, default: ReplicaTls | None) -> ReplicaTls:
    """A replica's settings, with those for all replicas where it says nothing."""
    values = {name: getattr(default, name) for name in ReplicaTls.__struct_fields__} if default is not None else {}
    if own is not None:
        given = {name: value for name in ReplicaTls.__struct_fields__ if (value := getattr(own, name)) is not None}
        if own.cert is not None:  # the key of another certificate is no use
            values["key"] = None
        values |= given
    return ReplicaTls(**values)


def check_tls(settings: Settings) -> None:
    """Raises ConfigError naming the key and the file for what can not be used."""
    listen = settings.listen
    if listen.tls is not None:
        server_context(listen.tls, "listen.tls")
    if listen.control_tls is not None:
        server_context(listen.control_tls, "listen.control_tls")
    if settings.replica_tls is not None:
        client_context(merged(None, settings.replica_tls), "replica_tls")
    for number, replica in enumerate(settings.replicas):
        if replica.tls is not None:
            client_context(merged(replica.tls, settings.replica_tls), f"replicas[{number}].tls")


def uses_files(settings: Settings) -> bool:
    """Something is read from files that may be told to be read again."""
    tls = (settings.listen.tls, settings.listen.control_tls, settings.replica_tls, *(one.tls for one in settings.replicas))
    return any(one is not None for one in tls)


def server_context(settings: ListenTls, where: str) -> ssl.SSLContext:
    """A context of a listening port; raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, settings.cert, settings.key, where)
    if settings.client_ca is not None:
        _load_authorities(context, settings.client_ca, f"{where}.client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(settings: ReplicaTls, where: str) -> ssl.SSLContext:
    """A context for speaking to replicas; raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if settings.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is not None:
        _load_authorities(context, settings.ca, f"{where}.ca")
    else:
        context.load_default_certs()
    if settings.cert is not None:
        _load_pair(context, settings.cert, settings.key, where)
    elif settings.key is not None:
        raise ConfigError(f"{where}.key: {settings.key!r} has no cert")
    return context


def reason_of(error: BaseException, *, by_tls: bool) -> str | None:
    """What is wrong with a certificate or a handshake, in OpenSSL's words where it says; None where TLS is not what failed.

    by_tls: the connection was.
    """
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {inner.verify_message}"
    if isinstance(inner, ssl.SSLError):
        return f"TLS failed: {inner.reason or inner}"
    if by_tls and isinstance(inner, ConnectionError | aiohttp.ServerDisconnectedError):
        # Since TLS 1.3 a server judges our certificate behind the handshake, and many close without a word.
        return f"{type(error).__name__}: {error} (by TLS: perhaps our certificate, tls.cert, is missing or not accepted there)"
    return None


def _load_pair(context: ssl.SSLContext, cert: str, key: str | None, where: str) -> None:
    _check_readable(cert, f"{where}.cert")
    if key is not None:
        _check_readable(key, f"{where}.key")
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        keys = f"{where}.cert, {where}.key" if key is not None else f"{where}.cert"
        files = f"{cert!r}, {key!r}" if key is not None else repr(cert)
        raise ConfigError(f"{keys}: no certificate with its key in {files}: {_said(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: str, where: str) -> None:
    _check_readable(path, where)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: no certificates in {path!r}: {_said(error)}") from None


def _check_readable(path: str, where: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot read {path!r}: {getattr(error, 'strerror', None) or error}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")


def _said(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _stamp(paths: Sequence[str]) -> _Stamp:
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
