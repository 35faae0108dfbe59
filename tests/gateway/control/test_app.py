"""The control plane's reading routes, over a real socket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from prometheus_client.parser import text_string_to_metric_families

from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.request import Outcome, TrafficCounts, Usage
from gateway.views import Views
from tests.gateway.test_place import House, prompt_of


class Served:
    """A house behind its control plane."""

    def __init__(self) -> None:
        self.house = House()
        self.traffic = TrafficCounts(requests={("chat", 2): 3})
        admin = Admin(None, (), add=_never, remove=_never)
        views = Views(self.house.fleet, self.house.index)
        self.plane = ControlPlane(self.house.placer, self.traffic, views, admin, lambda: "ready")
        self.base = ""

    async def get(self, path: str) -> tuple[int, Any]:
        async with ClientSession() as session, session.get(self.base + path) as answer:
            return answer.status, await (answer.json() if answer.content_type == "application/json" else answer.text())


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


async def test_ready_means_a_replica_can_be_chosen(served: Served) -> None:
    assert await served.get("/readyz") == (200, {"ready": True, "usable_replicas": 2, "draining": False})
    served.plane.draining = True
    assert (await served.get("/readyz"))[0] == 503
    served.plane.draining = False
    for replica in served.house.replicas:
        replica.healthy = False
    assert (await served.get("/readyz"))[0] == 503
    assert (await served.get("/livez"))[0] == 200


async def test_receipts_come_newest_first_and_can_be_narrowed(served: Served) -> None:
    for number in range(5):
        ticket = served.house.place(prompt_of(40, number))
        ticket.request_id = str(number)
        ticket.first_byte()
        ticket.close(Outcome.OK, Usage(40, 2, 0))
    status, answer = await served.get("/receipts?limit=2")
    assert status == 200
    assert [row["request_id"] for row in answer["receipts"]] == ["4", "3"]
    row = answer["receipts"][0]
    assert (row["outcome"], row["output_tokens"], row["predicted_cached_tokens"]) == ("ok", 2, 0)
    assert {candidate["replica"] for candidate in row["candidates"]} == {"r0", "r1"}
    assert (await served.get("/receipts?reason=credit"))[1] == {"receipts": []}
    used = {row["replica"] for row in (await served.get("/receipts"))[1]["receipts"]}
    only = (await served.get(f"/receipts?replica={min(used)}"))[1]["receipts"]
    assert {row["replica"] for row in only} == {min(used)}


@pytest.mark.parametrize("limit", ["0", "-1", "x", "%C2%B2", "1" * 5000, "99999", ""])
async def test_a_wrong_limit_is_named(served: Served, limit: str) -> None:
    status, answer = await served.get(f"/receipts?limit={limit}")
    assert (status, answer["error"]["param"]) == (400, "limit")


async def test_status_tells_the_whole_fleet(served: Served) -> None:
    ticket = served.house.place(prompt_of(40))
    _, status = await served.get("/status")
    assert (status["policy"], status["models"], status["tokenizer"]) == ("cost", ["m"], "ready")
    ranks = [rank for replica in status["replicas"] for rank in replica["ranks"]]
    assert sorted(rank["in_flight"] for rank in ranks) == [0, 1]
    assert sorted(rank["queued_tokens"] for rank in ranks) == [0, 40]
    ticket.close(Outcome.CLIENT_LEFT)
    assert (await served.get("/index/stats"))[1]["blocks"] == 0


async def test_the_scrape_shows_what_was_counted(served: Served) -> None:
    """FC-62: labels come from closed sets."""
    for _ in range(3):
        ticket = served.house.place(prompt_of(40))
        ticket.first_byte()
        ticket.close(Outcome.OK, Usage(40, 2, ticket.decision.credit_tokens))
    status, text = await served.get("/metrics")
    assert status == 200
    samples = {(s.name, *sorted(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert samples["trunkline_requests_total", "2xx", "chat"] == 3
    assert samples["trunkline_output_tokens_total",] == 6
    assert samples["trunkline_predictions_total",] == samples["trunkline_exact_predictions_total",] == 3
    assert samples["trunkline_ttft_seconds_count",] == 3
    assert sum(value for key, value in samples.items() if key[0] == "trunkline_decisions_total") == 3
    assert sum(value for key, value in samples.items() if key[0] == "trunkline_view_freshness") == 2


async def test_every_metric_is_documented(served: Served) -> None:
    text = (Path(__file__).parents[3] / "docs" / "control-plane.md").read_text()
    families = text_string_to_metric_families((await served.get("/metrics"))[1])
    # A row names the first of a family of metrics whole and the others by their last part: `_gaps_`, `_nodes`.
    listed = {
        f"{stem}{part}".strip("_") for stem in ("trunkline_event", "trunkline_index") for part in re.findall(r"`(_\w+)`", text)
    }
    missing = [family.name for family in families if family.name not in text and family.name not in listed]
    assert missing == []


async def test_an_unknown_parameter_is_named_and_a_receipt_is_found_by_its_id(served: Served) -> None:
    for number in range(3):
        ticket = served.house.place(prompt_of(8, number))
        ticket.request_id = f"id-{number}"
        ticket.close(Outcome.OK)
    found = (await served.get("/receipts?request_id=id-1"))[1]["receipts"]
    assert [row["request_id"] for row in found] == ["id-1"]
    assert (await served.get("/receipts?request=id-1"))[0] == 400
