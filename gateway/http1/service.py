"""What a client connection and the data plane ask of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.config import Limits
from gateway.errors import Refusal
from gateway.http1.intake import BodyBudget
from gateway.http1.parse import HeadReader, Judged
from gateway.request import TrafficCounts

if TYPE_CHECKING:
    from gateway.http1.client_side import ClientConnection


class Exchange(Protocol):
    """The request a connection is waiting for."""

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever the engine shows life."""
        ...

    def silence_limit_s(self) -> float | None:
        """How long the engine may be without `progress` now."""
        ...

    def engine_silent(self) -> None: ...

    def client_left(self) -> None: ...

    def pause(self) -> None:
        """The client is slow: stop reading from the engine."""
        ...

    def resume(self) -> None: ...

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised; the exchange has to end, with an answer where there can be one."""
        ...


class Service(Protocol):
    """What a connection needs of the data plane."""

    limits: Limits
    counts: TrafficCounts
    heads: HeadReader
    budget: BodyBudget
    draining: bool

    def opened(self, client: ClientConnection) -> None: ...

    def closed(self, client: ClientConnection) -> None: ...

    def begin(self, client: ClientConnection, judged: Judged, body: bytes) -> None:
        """Serve one whole request: answer it, or set `client.exchange`; raises Refusal."""
        ...

    def counted(self, route: str, status: int, refusal: Refusal | None = None) -> None:
        """Count an answer of the gateway's own."""
        ...

    def internal_error(self, error: Exception) -> None:
        """Count and log what our own code raised."""
        ...
