"""`POST /explain` and `trunkline explain` over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.cli import main
from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.control.explain_route import ExplainRoute
from gateway.explain.ask import Explainer
from gateway.request import Intent, Prompt, TrafficCounts
from gateway.views import Views
from tests.gateway.test_place import House, prompt_of

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class ThreeWays:
    """Tokens at once, later, or none, as the body wants it."""

    def of(self, intent: Intent, body: bytes, take: Callable[[Prompt], None]) -> Prompt | asyncio.Future[Prompt]:
        if "tools" in intent.fields:
            return Prompt(None, "template")
        prompt = Prompt(prompt_of(64))
        if "slow" not in intent.fields:
            return prompt
        return asyncio.ensure_future(asyncio.sleep(0.01, prompt))


class Served:
    def __init__(self) -> None:
        self.house = House()
        self.house.store(self.house.replicas[1], prompt_of(64))
        explainer = Explainer(self.house.placer, ThreeWays(), self.house.index)
        self.plane = ControlPlane(
            self.house.placer,
            TrafficCounts(),
            Views(self.house.fleet, self.house.index),
            Admin(None, (), add=_never, remove=_never),
            lambda: "ready",
            more=ExplainRoute(explainer, 2000).routes(),
        )
        self.base = ""

    async def post(self, body: bytes, **headers: str) -> tuple[int, Any]:
        async with ClientSession() as session, session.post(f"{self.base}/explain", data=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def typed(self, *args: str) -> int:
        return await asyncio.to_thread(main, ["explain", *args, "--gateway", self.base])


async def _never(*args: object) -> Any:
    raise AssertionError(args)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    runner = web.AppRunner(served.plane.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


async def test_the_route_answers_with_prices_and_a_decision(served: Served) -> None:
    for body in (CHAT, {**CHAT, "slow": True}):
        status, row = await served.post(json.dumps(body).encode())
        assert status == 200
        assert (row["kind"], row["tokens"], row["policy"]) == ("chat", 64, "cost")
        assert (row["decision"]["replica"], row["decision"]["predicted_cached_tokens"]) == ("r1", 48)
    status, row = await served.post(json.dumps({"model": "m", "prompt": "x"}).encode())
    assert (status, row["kind"]) == (200, "completion")
    status, row = await served.post(json.dumps({**CHAT, "tools": []}).encode(), **{"x-trunkline-session": "s"})
    assert (row["tokens"], row["no_tokens_reason"], row["session"]) == (None, "template", True)
    assert row["decision"]["reason"] == "no_tokens"


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "object"),
        (b'{"model":"m"}', 400, "neither 'messages' nor 'prompt'"),
        (b'{"model":7,"prompt":"x"}', 400, "'model' must be a string"),
        (b'{"prompt":"' + b"x" * 3000 + b'"}', 413, "larger than 2000 bytes"),
    ],
)
async def test_a_wrong_body_is_named(served: Served, body: bytes, status: int, names: str) -> None:
    code, answer = await served.post(body)
    assert (code, names in answer["error"]["message"]) == (status, True)


async def test_a_wrong_priority_and_an_unknown_parameter_are_named(served: Served) -> None:
    assert (await served.post(b'{"prompt":"x"}', **{"x-trunkline-priority": "high"}))[0] == 400
    async with ClientSession() as session, session.post(f"{served.base}/explain?dry=1", data=b"{}") as answer:
        assert answer.status == 400


async def test_the_command_prints_a_table_or_one_object(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(CHAT))
    assert await served.typed(str(file)) == 0
    text = capsys.readouterr().out
    assert "chat for model m: 64 tokens" in text
    assert "Chosen by cost: r1, because it holds the longest usable prefix (credit)" in text
    assert "least_loaded" in text
    assert await served.typed(str(file), "--json", "--session", "s", "--priority", "2") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["session"], row["priority"], row["decision"]["replica"]) == (True, 2, "r1")


async def test_the_exit_status_tells_a_refusal_from_wrong_use(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, wrong = tmp_path / "refused.json", tmp_path / "wrong.json"
    refused.write_text(json.dumps({**CHAT, "model": "nobody's"}))
    wrong.write_text("{")
    assert await served.typed(str(refused)) == 1
    assert "It would be refused: 404" in capsys.readouterr().out
    assert await served.typed(str(wrong)) == 2
    assert "not valid JSON" in capsys.readouterr().err
    assert await served.typed(str(tmp_path / "missing.json")) == 2
    assert await asyncio.to_thread(main, ["explain", str(wrong), "--gateway", "http://127.0.0.1:1"]) == 1
    assert "cannot ask http://127.0.0.1:1/explain" in capsys.readouterr().err
