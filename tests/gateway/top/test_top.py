"""The live view: figures of the last moments, per rank and in total, as a table and as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.cli import main
from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.request import Outcome, TrafficCounts, Usage
from gateway.top.frame import frame_of
from gateway.views import Views
from tests.gateway.test_place import House, prompt_of


def receipt(at: float, replica: str = "a", **fields: Any) -> dict[str, Any]:
    usual = {
        "at": at,
        "replica": replica,
        "rank": 0,
        "reason": "credit",
        "prompt_tokens": 100,
        "engine_prompt_tokens": 100,
        "predicted_cached_tokens": 80,
        "realised_cached_tokens": 60,
        "output_tokens": 10,
        "ttft_s": 0.1,
        "outcome": "ok",
    }
    return usual | fields


def status_of(*names: str) -> dict[str, Any]:
    rank = {
        "rank": 0,
        "in_flight": 2,
        "queued_tokens": 300,
        "decoding": 1,
        "trust": 0.9,
        "freshness": "live",
        "prefill_tokens_per_s": 1000.0,
    }
    replicas = [{"name": name, "healthy": name != "down", "draining": False, "ranks": [rank]} for name in names]
    return {"at": 1000.0, "policy": "cost", "tokenizer": "ready", "replicas": replicas}


def test_figures_are_those_of_the_window() -> None:
    receipts = [
        receipt(999.0, ttft_s=0.1),
        receipt(998.0, ttft_s=0.3, reason="price", realised_cached_tokens=None),
        receipt(997.0, replica="down", outcome="engine_error", output_tokens=None, ttft_s=None, prompt_tokens=0),
        receipt(980.0, ttft_s=9.0),  # too long ago
    ]
    frame = frame_of(status_of("a", "down"), receipts, window_s=10.0, limit=100)
    first, second = frame["ranks"]
    assert (first["replica"], first["state"], first["in_flight"], first["queued_tokens"]) == ("a", "up", 2, 300)
    assert (first["requests_per_s"], first["output_tokens_per_s"], first["prompt_tokens_per_s"]) == (0.2, 2.0, 20.0)
    assert (first["predicted_share"], first["realised_share"]) == (0.8, 0.6)  # of those where both are known
    assert (first["ttft_p50_s"], first["ttft_p99_s"]) == (0.3, 0.3)
    assert first["reasons"] == {"credit": 0.5, "price": 0.5}
    assert first["failed_share"] == 0
    assert (second["state"], second["predicted_share"], second["ttft_p50_s"], second["failed_share"]) == ("down", None, None, 1)
    assert frame["total"]["in_flight"] == 4
    assert frame["total"]["requests_per_s"] == pytest.approx(0.3)


def test_a_window_is_as_long_as_the_receipts_reach_back() -> None:
    receipts = [receipt(1000.0 - 0.5 * number) for number in range(1, 5)]
    frame = frame_of(status_of("a"), receipts, window_s=60.0, limit=4)
    assert frame["window_s"] == 2.0
    assert frame["total"]["requests_per_s"] == 2.0


async def _never(*args: object) -> Any:
    raise AssertionError(args)


async def test_the_command_prints_one_frame(capsys: pytest.CaptureFixture[str]) -> None:
    house = House()
    for seed in range(3):
        ticket = house.place(prompt_of(40, seed))
        ticket.first_byte()
        ticket.close(Outcome.OK, Usage(40, 5, 0))
    views, admin = Views(house.fleet, house.index), Admin(None, (), add=_never, remove=_never)
    runner = web.AppRunner(ControlPlane(house.placer, TrafficCounts(), views, admin, lambda: "ready").app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        assert await asyncio.to_thread(main, ["top", "--gateway", url, "--once"]) == 0
        text = capsys.readouterr().out
        assert "policy cost, tokenizer ready, requests of the last 60 s" in text
        lines = {line.split()[0]: line for line in text.splitlines() if line}
        assert {"r0", "r1", "all"} <= lines.keys()
        assert "load 100%" in lines["all"]
        assert await asyncio.to_thread(main, ["top", "--gateway", url, "--once", "--json", "--window", "30"]) == 0
        frame = json.loads(capsys.readouterr().out)
        assert frame["total"]["output_tokens_per_s"] == pytest.approx(0.5)
    finally:
        await runner.cleanup()
    assert await asyncio.to_thread(main, ["top", "--gateway", url, "--once"]) == 1
    assert f"cannot ask {url}/" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["top", "--interval", "0"]) == 2
