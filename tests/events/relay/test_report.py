"""What a relay tells about itself."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp.test_utils import TestClient, TestServer

from events.relay.report import control_app, report
from events.relay.store import Place
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import line, relaying
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer


async def test_metrics_say_what_came_in_and_what_went_out(redis: RedisServer) -> None:
    """FC-62: one series per rank, whatever happens."""
    async with (
        FakePublisher() as engine,
        relaying(Place(redis.url), engine) as relay,
        TestClient(TestServer(control_app(relay))) as client,
    ):
        await until(lambda: relay.writing and line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(6))
        await until(lambda: line(relay)[1].counts.batches == 6)
        text = await (await client.get("/metrics")).text()
    values = dict(row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))

    def value(name: str, labels: str = '{rank="0",replica="r"}') -> float:
        return float(values[f"trunkline_relay_{name}{labels}"])

    assert (value("in_batches_total"), value("out_batches_total"), value("blocks")) == (6, 6, 6)
    assert value("in_bytes_total") == sum(len(payload) for _, payload in engine.kept)
    assert 0 < value("out_bytes_total") < value("in_bytes_total")
    assert value("out_snapshots_total") >= 1
    assert value("writing") == 1
    assert value("view_freshness", '{rank="0",replica="r",state="live"}') == 1


async def test_a_relay_that_stands_by_lives_but_is_not_ready(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as first:
        await until(lambda: first.writing)
        async with (
            relaying(place, engine, name="second") as second,
            TestClient(TestServer(control_app(second))) as client,
        ):
            assert (await client.get("/livez")).status == 200
            answer = await client.get("/readyz")
            assert answer.status == 503
            assert (await answer.json())["ranks"][0]["writing"] is False
        async with TestClient(TestServer(control_app(first))) as client:
            assert (await client.get("/readyz")).status == 200


async def test_once_in_a_while_a_line_is_logged(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "events.relay.report")
    async with FakePublisher() as engine, relaying(Place(redis.url), engine) as relay:
        reporter = asyncio.get_running_loop().create_task(report(relay, every_s=0.01))
        await until(lambda: "relayed replica=r rank=0" in caplog.text)
        reporter.cancel()
