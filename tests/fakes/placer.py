"""A placer without a fleet behind it: takes replicas in the order given, and remembers what became of every ticket."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.choose.types import Decision
from gateway.dialects import dialect_named
from gateway.errors import NoReplica
from gateway.fleet import Address, EngineTls, Replica
from gateway.request import Intent, Outcome, Prompt, Ticket, Usage


def replica_at(
    port: int,
    name: str = "r1",
    *,
    dialect: str = "openai",
    api_key: str | None = None,
    base: str = "",
    tls: EngineTls | None = None,
) -> Replica:
    """A replica on loopback."""
    scheme = "http" if tls is None else "https"
    return Replica(name, Address.parse(f"{scheme}://127.0.0.1:{port}{base}"), dialect_named(dialect), api_key, tls=tls)


class FakeTicket:
    """Holds one place in its placer's count of open requests until it is closed."""

    def __init__(self, placer: FakePlacer, request_id: str, intent: Intent, prompt: Prompt) -> None:
        self.placer = placer
        self.request_id = request_id
        self.intent = intent
        self.prompt = prompt
        self.policy = "fake"
        self.rank = 0
        self.decision = Decision(holder=0, reason="policy", price_s=0.0, credit_tokens=16)
        self.attempts = 1
        self.tried = [placer.replicas[0]]
        self.replica = placer.replicas[0]
        self.faults: list[str] = []
        self.answers: list[int] = []
        self.first_bytes = 0
        self.closes: list[tuple[Outcome, Usage | None]] = []

    def owner(self, holder: int) -> tuple[str, int]:
        return self.placer.replicas[holder].name, 0

    def move(self, *, fault: bool) -> None:
        if fault:
            self.faults.append(self.replica.name)
        left = [replica for replica in self.placer.replicas if replica not in self.tried]
        if not left:
            raise NoReplica(self.intent.model)
        self.replica = left[0]
        self.tried.append(left[0])
        self.attempts += 1

    def answered(self, status: int) -> None:
        self.answers.append(status)

    def first_byte(self) -> None:
        self.first_bytes += 1

    def close(self, outcome: Outcome, usage: Usage | None = None) -> None:
        self.closes.append((outcome, usage))


class FakePlacer:
    """tickets: all that were opened, in order."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = list(replicas)
        self.tickets: list[FakeTicket] = []
        self.error: Exception | None = None

    def place(self, intent: Intent, prompt: Prompt, request_id: str, *, beside: Ticket | None = None) -> FakeTicket:
        if self.error is not None:
            raise self.error
        if not self.replicas:
            raise NoReplica(intent.model)
        left = [replica for replica in self.replicas if beside is None or replica is not beside.replica]
        if not left:
            raise NoReplica(intent.model)
        ticket = FakeTicket(self, request_id, intent, prompt)
        ticket.replica, ticket.tried = left[0], [*ticket.tried[: beside is not None], left[0]]
        self.tickets.append(ticket)
        return ticket

    @property
    def open(self) -> int:
        return sum(not ticket.closes for ticket in self.tickets)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of closed tickets; a ticket that was closed twice shows up twice."""
        return [outcome for ticket in self.tickets for outcome, _ in ticket.closes]
