"""What the control plane and `trunkline index` show of the index, over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.cli import main
from gateway.config import ReplicaSettings
from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.control.index_routes import IndexRoutes
from gateway.health import Facts
from gateway.request import TrafficCounts
from gateway.views import Views
from radix.changes import Batch, NamespaceHint, Stored, Tier, as_tokens
from tests.fakes.event_queue import BLOCK, FakeQueue, created, stored
from tests.fakes.publisher import until
from tests.gateway.test_place import House

TOKEN = "right-token-8861"
SECRET = NamespaceHint("sql", "tenant-salt-77", (b"image",))


class Served:
    """A house of two replicas; the first has two blocks, the second three in a namespace of their own and one without a place."""

    def __init__(self, token: str | None) -> None:
        self.house = House()
        self.views = Views(self.house.fleet, self.house.index)
        admin = Admin(token, (), add=_never, remove=_never)
        self.plane = ControlPlane(self.house.placer, TrafficCounts(), self.views, admin, lambda: "ready")
        self.runner = web.AppRunner(self.plane.app())
        self.base = ""
        self.house.store(self.house.replicas[0], as_tokens(range(32)))
        told = (
            Stored((1, 2, 3), None, as_tokens(range(12)), 4, SECRET),
            Stored((9,), None, as_tokens([]), 4, tier=Tier.HOST),
        )
        self.house.index.apply(self.house.replicas[1].holders[0], Batch(0, 0, 0.0, told))

    async def up(self) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.base = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with ClientSession() as session, session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def dump(self, query: str = "", token: str | None = None) -> list[dict[str, Any]]:
        status, text = await self.get(f"/index/dump{query}", token)
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    async def typed(self, *args: str) -> int:
        """`trunkline index ...` against this plane."""
        return await asyncio.to_thread(main, ["index", *args, "--url", self.base])


async def _never(*args: object) -> Any:
    raise AssertionError(args)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served(TOKEN)
    await served.up()
    yield served
    await served.views.stop()
    await served.runner.cleanup()


async def test_a_dump_shows_the_shape_and_nothing_that_leads_to_a_prompt(served: Served) -> None:
    rows = await served.dump()
    assert [row["kind"] for row in rows] == ["holder", "block", "block", "holder", *["block"] * 4, "end"]
    first, *own = rows[:3]
    assert (first["replica"], first["rank"], first["freshness"], first["digest"]) == ("r0", 0, "live", None)
    assert sorted((row["tier"], row["group"], row["depth"], row["block_tokens"], row["copies"]) for row in own) == [
        ("device", 0, 16, 16, 1),
        ("device", 0, 32, 16, 1),
    ]
    placed = [row for row in rows[4:8] if row["depth"] is not None]
    assert {(row["adapter"], row["salted"], row["images"]) for row in placed} == {("sql", True, 1)}
    (loose,) = [row for row in rows[4:8] if row["depth"] is None]
    assert (loose["tier"], loose["block_tokens"]) == ("host", 0)
    assert rows[-1] == {"kind": "end", "shown": 6, "more": False}
    assert not {"hash", "tokens", "salt"} & {name for row in rows for name in row}
    assert "tenant-salt" not in json.dumps(rows)


async def test_hashes_and_tokens_need_the_admin_token(served: Served) -> None:
    for token in (None, "wrong"):
        assert (await served.get("/index/dump?tokens=1", token))[0] == 401
    rows = await served.dump("?tokens=1&replica=r1", TOKEN)
    blocks = {row["hash"]: row["tokens"] for row in rows if row["kind"] == "block"}
    assert blocks == {f"{n + 1:016x}": list(range(4 * n, 4 * n + 4)) for n in range(3)} | {f"{9:016x}": []}
    assert "tenant-salt" not in json.dumps(rows)
    off = Served(None)
    await off.up()
    assert (await off.get("/index/dump?tokens=1", TOKEN))[0] == 403
    await off.runner.cleanup()


async def test_a_dump_can_be_narrowed_and_is_bounded(served: Served) -> None:
    rows = await served.dump("?limit=3")
    assert [row["kind"] for row in rows] == ["holder", "block", "block", "holder", "block", "end"]
    assert rows[-1] == {"kind": "end", "shown": 3, "more": True}
    assert (await served.dump("?limit=6"))[-1] == {"kind": "end", "shown": 6, "more": False}
    assert [row["replica"] for row in await served.dump("?rank=0&replica=r1&limit=0") if row["kind"] == "holder"] == ["r1"]
    ticks = itertools.count()
    slow = IndexRoutes(served.house.placer, served.views, Admin(None, (), add=_never, remove=_never), lambda: next(ticks) * 0.06)
    cut = slow._cut(served.house.index.dump(served.house.replicas[1].holders[0]), 100, tokens=False)
    assert (len(cut[0]), cut[1]) == (1, True)  # the clock goes on by 60 ms at each look, and 100 ms is the time there is


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("?limit=-1", 400, "limit"),
        ("?limit=100001", 400, "limit"),
        ("?tokens=yes", 400, "tokens"),
        ("?digest=2", 400, "digest"),
        ("?rank=x", 400, "rank"),
        ("?rank=5", 404, "rank"),
        ("?replica=nobody", 404, "replica"),
        ("?holder=1", 400, "holder"),
    ],
)
async def test_a_wrong_parameter_is_named(served: Served, query: str, status: int, param: str) -> None:
    got, text = await served.get(f"/index/dump{query}")
    assert (got, json.loads(text)["error"]["param"]) == (status, param)


async def test_stats_tell_of_each_holder_what_its_stream_knows(served: Served) -> None:
    """Digests are equal for equal views, and are only made when asked for."""
    async with FakeQueue() as queue:
        replica, settings = served.house.replicas[0], ReplicaSettings(url="http://r0:8000", events=queue.url)
        for event in (created(), stored(0, count=3)):
            queue.tell(event)
        await served.views.follow(replica, settings, Facts(("m",)))
        await until(lambda: served.house.index.stats().blocks == 6)
        answer = json.loads((await served.get("/index/stats?digest=1"))[1])
        assert (answer["blocks"], answer["loose"], answer["holders"], len(answer["by_holder"])) == (6, 1, 2, 2)
        row = answer["by_holder"][0]
        assert (row["blocks"], row["block_tokens"], row["restarts"], row["gaps"], row["connected"]) == (3, BLOCK, 0, 0, True)
        assert row["digest"] == served.house.index.digest(replica.holders[0]).hex()
        await queue.restart()
        queue.tell(created())
        queue.tell(stored(0))
        await until(lambda: served.house.index.stats().blocks == 4)
        row = json.loads((await served.get("/index/stats"))[1])["by_holder"][0]
        assert (row["blocks"], row["restarts"], row["digest"], row["freshness"]) == (1, 1, None, "live")
        served.views.suspect(replica)
        assert json.loads((await served.get("/index/stats"))[1])["by_holder"][0]["blocks"] == 0


async def test_the_commands_print_tables_or_json_lines(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await served.typed("dump", "--digest") == 0
    out = capsys.readouterr().out
    digest = served.house.index.digest(served.house.replicas[1].holders[0]).hex()
    assert f"r1 rank 0: no events, live, digest {digest}" in out
    assert out.index("r0 rank 0") < out.index(" 32 ") < out.index("r1 rank 0") < out.index("sql") < out.index("6 blocks shown")
    assert await served.typed("dump", "--json", "--replica", "r0", "--rank", "0", "--limit", "1") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["holder", "block", "end"]
    monkeypatch.setenv("TRUNKLINE_ADMIN_TOKEN", TOKEN)
    assert await served.typed("dump", "--tokens", "--replica", "r1") == 0
    assert "4 5 6 7" in capsys.readouterr().out
    assert await served.typed("stats", "--digest") == 0
    assert digest in capsys.readouterr().out
    assert await served.typed("stats", "--json") == 0
    assert json.loads(capsys.readouterr().out)["loose"] == 1


async def test_the_commands_say_what_is_wrong(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRUNKLINE_ADMIN_TOKEN", raising=False)
    assert await served.typed("dump", "--replica", "nobody") == 2
    assert "no replica is called 'nobody'" in capsys.readouterr().err
    assert await served.typed("dump", "--tokens") == 2
    assert "admin token is required" in capsys.readouterr().err
    await served.runner.cleanup()
    assert await served.typed("stats") == 1
    assert f"cannot ask {served.base}/index/stats" in capsys.readouterr().err
