"""Where the stream of each rank is: rank r of `tcp://host:port` listens on port + r.

An engine that is told to connect instead of listening needs someone who listens: `bind+tcp://host:port`, a port for each rank.
A queue that is polled is at `http://host:port`, with the events of all ranks.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from events.errors import EndpointError

BIND = "bind+"
QUEUE_PATH = "/kv_cache_events"


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of one rank, from that of rank 0; raises EndpointError naming it when the rank cannot be told apart."""
    if endpoint.startswith(BIND):
        return BIND + rank_endpoint(endpoint.removeprefix(BIND), rank)
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme not in ("tcp", "ipc", "inproc") or not rest:
        raise EndpointError(f"event endpoint must be tcp://host:port, ipc://path or inproc://name, got {endpoint!r}")
    if scheme == "inproc":
        return f"{endpoint}_dp{rank}" if rank else endpoint
    if scheme == "ipc":
        if rank:
            raise EndpointError(f"rank {rank} needs a tcp endpoint, got {endpoint!r}")
        return endpoint
    host, colon, port = rest.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise EndpointError(f"event endpoint needs a host and a port, got {endpoint!r}")
    shifted = int(port) + rank if int(port) else 0  # port 0 is chosen by the system, for every rank anew
    if shifted > 65_535:
        raise EndpointError(f"rank {rank} of {endpoint!r} would need port {shifted}")
    return f"tcp://{host}:{shifted}"


def check_apart(events: str, replay: str, ranks: int) -> None:
    """Raise EndpointError when the events of one rank and the replay of another would be at the same port."""
    taken = {rank_endpoint(events, rank).removeprefix(BIND): rank for rank in range(ranks)}
    for rank in range(ranks):
        other = taken.get(rank_endpoint(replay, rank).removeprefix(BIND))
        if other is not None and not replay.endswith(":0"):
            raise EndpointError(
                f"{replay!r} of rank {rank} is where the events of rank {other} are: leave room for {ranks} ranks"
            )


def is_queue(endpoint: str) -> bool:
    """Whether an event endpoint is polled, and not subscribed to."""
    return endpoint.startswith(("http://", "https://"))


def queue_url(endpoint: str) -> str:
    """The URL to ask, from `http(s)://host:port` with or without a path; raises EndpointError naming the endpoint."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and parts.hostname not in (None, "*") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password or parts.query or parts.fragment:
        raise EndpointError(f"a queue of events must be http(s)://host:port, got {endpoint.rpartition('@')[2]!r:.200}")
    return endpoint.rstrip("/") + (QUEUE_PATH if parts.path in ("", "/") else "")
