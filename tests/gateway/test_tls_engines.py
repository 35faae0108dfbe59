"""Replicas behind https: whom the gateway believes, what it shows of itself, and what it says when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import Listen, ListenTls, ReplicaSettings, ReplicaTls, Settings
from gateway.control.admin import Admin
from gateway.fleet import Address, EngineTls, Fleet
from gateway.serve import Gateway, OwnKnowledge
from gateway.tls import Certificates
from gateway.views import Views
from tests.fakes.certificates import Authority, Pair, has_openssl
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import Running, running
from tests.fakes.engine import STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event
from tests.fakes.placer import FakePlacer, replica_at

pytestmark = pytest.mark.skipif(not has_openssl(), reason="needs openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "other")


def trusting(authority: Authority, *, name: str = "localhost", **values: Any) -> EngineTls:
    made = Certificates().engine(
        ReplicaTls(ca=str(authority.pair.cert), server_name=name, **values), None, Address.parse("https://127.0.0.1:1")
    )
    assert made is not None
    return made


@asynccontextmanager
async def before(engine: FakeEngine, tls: EngineTls, dialect: str = "openai") -> AsyncIterator[Running]:
    async with running(FakePlacer([replica_at(engine.port, tls=tls, dialect=dialect)])) as it:
        yield it


async def ask(it: Running, body: Any = CHAT) -> int:
    async with RawClient(it.port) as client:
        await client.send(post(body))
        return (await client.answer(within_s=20)).status


async def test_a_replica_is_believed_by_its_authority_and_its_name(authority: Authority, other: Authority) -> None:
    pair = authority.issue("engine", "DNS:engine.internal")
    async with FakeEngine(always(answer(b"{}")), tls=authority.serving(pair)) as engine:
        async with before(engine, trusting(authority, name="engine.internal")) as it:
            assert [await ask(it) for _ in range(3)] == [200] * 3
            assert engine.connections == 1  # kept, as in the clear
        for tls in (trusting(authority, name="localhost"), trusting(other, name="engine.internal")):
            async with before(engine, tls) as it:
                assert await ask(it) == 502
                assert it.placer.tickets[0].faults == ["r1"]
        async with before(engine, trusting(other, name="whatever", verify=False)) as it:
            assert await ask(it) == 200


async def test_a_large_request_and_a_stream_pass(authority: Authority) -> None:
    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD)
        for number in range(300):
            call.writer.write(chunk(event(str(number) + "x" * 5_000)))
            await call.writer.drain()
        await call.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    pair = authority.issue("engine")
    body = {**CHAT, "stream": True, "user": "u" * 2_000_000}
    async with FakeEngine(script, tls=authority.serving(pair)) as engine, before(engine, trusting(authority)) as it:
        async with RawClient(it.port) as client:
            await client.send(post(body))
            reply = await client.answer(within_s=20)
        assert reply.complete
        assert len(reply.events) == 301
        assert len(engine.calls[0].body) > 2_000_000


async def test_a_client_that_leaves_stops_its_engine_by_the_connection_and_by_the_call(authority: Authority) -> None:
    """FC-49."""
    left: list[bool] = []

    async def script(call: Call) -> None:
        if b"/abort_request" in call.request_line:
            await call.send(answer(b""))
            return
        await call.send(STREAM_HEAD, chunk(event("a")))
        left.append(await call.left(20))

    pair = authority.issue("engine")
    async with FakeEngine(script, tls=authority.serving(pair)) as engine, before(engine, trusting(authority), "sglang") as it:
        async with RawClient(it.port) as client:
            await client.send(post({**CHAT, "stream": True}))
            await client.reader.readuntil(b"data: ")
            client.reset()
        await until(lambda: left == [True] and it.counts.engine_aborts == {"done": 1})


async def test_the_gateway_shows_its_certificate_and_a_new_one_when_that_changes(
    authority: Authority, other: Authority, tmp_path: Path
) -> None:
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    other.issue("gateway").copy_to(live)
    certificates = Certificates()
    settings = ReplicaTls(str(authority.pair.cert), str(live.cert), str(live.key), "localhost")
    tls = certificates.engine(settings, None, Address.parse("https://127.0.0.1:1"))
    assert tls is not None
    serving = authority.serving(authority.issue("engine"), clients=authority)
    async with FakeEngine(always(answer(b"{}")), tls=serving) as engine:
        async with before(engine, tls) as it:
            assert await ask(it) == 502
        authority.issue("gateway").copy_to(live)
        certificates.look()
        async with before(engine, tls) as it:
            assert await ask(it) == 200


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


class _Idle(OwnKnowledge):
    """An index that stays as it is."""

    async def keep(self) -> None:
        await asyncio.Event().wait()

    def views(self, fleet: Fleet) -> Views:
        return super().views(fleet)


async def script_of_an_engine(call: Call) -> None:
    """Healthy, one model, and an answer to everything else."""
    line = call.request_line
    if b"/v1/models" in line:
        await call.send(answer(b'{"data":[{"id":"m","owned_by":"vllm"}]}'))
    elif line.startswith(b"GET") and b"/health" not in line:
        await call.send(answer(b"", b"404 Not Found"))
    else:
        await call.send(answer(b"{}"))


async def test_a_whole_gateway_by_tls_on_all_sides(authority: Authority, other: Authority) -> None:
    """Checks and facts are read by it, too; what is wrong with a certificate is said where replicas are listed."""
    server = authority.issue("gateway")
    mine = ListenTls(str(server.cert), str(server.key))
    serving = authority.serving(authority.issue("engine"), clients=authority)
    shown = authority.issue("to-engines")
    default = ReplicaTls(str(authority.pair.cert), str(shown.cert), str(shown.key))
    async with FakeEngine(script_of_an_engine, tls=serving) as engine:
        url = f"https://127.0.0.1:{engine.port}"
        replicas = (
            ReplicaSettings(url=url, name="good"),
            ReplicaSettings(url=url, name="unknown", tls=ReplicaTls(ca=str(other.pair.cert))),
            ReplicaSettings(url=url, name="misnamed", tls=ReplicaTls(server_name="elsewhere")),
        )
        settings = Settings(
            listen=Listen("127.0.0.1", 0, "127.0.0.1", 0, mine, mine),
            replicas=replicas,
            replica_tls=default,
            policy="round_robin",
        )
        gateway = Gateway(settings, _Idle(settings))
        port, control_port = await gateway.start()
        trusted = authority.trusted()
        try:
            await until(lambda: gateway.fleet.replicas["good"].healthy)
            await until(lambda: all(gateway.fleet.replicas[name].last_error for name in ("unknown", "misnamed")))
            assert gateway.fleet.replicas["good"].dialect.name == "vllm"
            async with RawClient(port, tls=trusted) as client:
                await client.send(post({"model": "m", "messages": []}))
                assert (await client.answer()).status == 200
            async with aiohttp.ClientSession() as session:
                place = f"https://localhost:{control_port}/replicas"
                async with session.get(place, ssl=trusted) as reply:
                    rows = {row["name"]: row for row in (await reply.json())["replicas"]}
        finally:
            await gateway.stop()
        assert rows["good"]["last_error"] is None
        assert rows["unknown"]["last_error"].startswith("certificate not accepted: self-signed certificate")
        assert rows["misnamed"]["last_error"].startswith("certificate not accepted: Hostname mismatch")


async def test_an_engine_that_wants_another_certificate_is_said_to_refuse_ours(authority: Authority, other: Authority) -> None:
    serving = other.serving(other.issue("engine"), clients=other)
    async with FakeEngine(always(answer(b"{}")), tls=serving) as engine:
        settings = Settings(listen=Listen("127.0.0.1", 0, "127.0.0.1", 0))
        gateway = Gateway(settings, _Idle(settings))
        await gateway.start(serves=False)
        try:
            tls = ReplicaTls(ca=str(other.pair.cert))
            url = f"https://127.0.0.1:{engine.port}"
            await gateway.add_replica(ReplicaSettings(url=url, name="r", tls=tls), Address.parse(url))
            await until(lambda: gateway.fleet.replicas["r"].last_error is not None)
            error = str(gateway.fleet.replicas["r"].last_error)
        finally:
            await gateway.stop()
    assert "certificate" in error.lower(), error


async def test_a_replica_added_at_run_time_keeps_the_name_its_certificate_has() -> None:
    """FC-58: it is spoken to at the address that was judged, and believed by its name."""
    added: list[ReplicaSettings] = []

    async def add(settings: ReplicaSettings, address: Address) -> str:
        added.append(settings)
        return "r"

    async def remove(name: str) -> bool:
        return False

    admin = Admin("token", ("127.0.0.0/8", "::1/128"), add=add, remove=remove)
    app = aiohttp.web.Application()
    app.router.add_post("/replicas", admin.add_replica)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    headers = {"authorization": "Bearer token"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}", headers=headers) as session:
        for body in (
            {"url": "https://localhost:8443"},
            {"url": "https://localhost:8443", "tls": {"server_name": "engine", "verify": True}},
            {"url": "http://localhost:8000"},
        ):
            async with session.post("/replicas", json=body) as reply:
                assert reply.status == 201
    await runner.cleanup()
    assert [one.tls for one in added] == [
        ReplicaTls(server_name="localhost"),
        ReplicaTls(server_name="engine", verify=True),
        None,
    ]
