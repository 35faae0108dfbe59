"""`x-trunkline-explain: 1` on a request: the candidates of the decision in the answer's head, and no more than fits."""

from __future__ import annotations

import math

from gateway.choose.types import Candidate, Decision
from gateway.explain.header import candidates_line
from gateway.request import Intent, Kind, Prompt
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running
from tests.fakes.engine import FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, FakeTicket, replica_at

OK = answer(b'{"ok":true}')


def ticket_of(*candidates: Candidate, names: int = 3, length: int = 1) -> FakeTicket:
    placer = FakePlacer([replica_at(1, "r" * length + str(number)) for number in range(names)])
    ticket = FakeTicket(placer, "id", Intent(Kind.CHAT, {}), Prompt(None))
    ticket.decision = Decision(0, "price", 0.0, 0, candidates)
    return ticket


def test_candidates_stand_cheapest_first() -> None:
    line = candidates_line(ticket_of(Candidate(0, 1104, 0.52), Candidate(1, 800, 0.3321), Candidate(2, 0, 0.62)))
    assert line == "r1;price=0.332;cached=800, r0;price=0.520;cached=1104, r2;price=0.620;cached=0"
    assert candidates_line(ticket_of(Candidate(0, 16, math.nan))) == "r0;cached=16"


def test_what_does_not_fit_is_counted() -> None:
    many = [Candidate(number, 0, float(number)) for number in range(1000)]
    line = candidates_line(ticket_of(*many, names=1000, length=30))
    shown = line.split(", ")
    assert len(line) < 1050
    assert shown[-1] == f"+{1000 - len(shown) + 1}"


async def test_only_who_asks_gets_it() -> None:
    placer = FakePlacer([])
    async with FakeEngine(always(OK)) as engine, running(placer) as it, RawClient(it.port) as client:
        placer.replicas.append(replica_at(engine.port))
        for headers, wanted in (((), []), ((b"x-trunkline-explain: 1",), [b""]), ((b"x-trunkline-explain: 0",), [])):
            raw = post(CHAT)
            head, _, body = raw.partition(b"\r\n\r\n")
            await client.send(b"\r\n".join((head, *headers)) + b"\r\n\r\n" + body)
            assert (await client.answer()).values(b"x-trunkline-explain") == wanted
