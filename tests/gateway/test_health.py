"""Health checks against real HTTP servers: down after several failures, up again, and what is learned then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import ClientSession, web

from gateway.cards import Card
from gateway.choose.rates import Rates
from gateway.config import Health, ReplicaSettings
from gateway.fleet import Address, Fleet, Replica
from gateway.health import Facts, HealthMonitor
from radix.index import Index

QUICK = Health(interval_s=0.02, timeout_s=0.5, failures=2, successes=2)


class Engine:
    """A server whose answers the test sets."""

    def __init__(self) -> None:
        self.health = 200
        self.checks = 0
        self.raw_models: bytes | None = None
        self.told_status = 200
        self.asked = 0
        self.models: object = {"data": [{"id": "m"}, {"id": "m-alias"}, {"no": "id"}, 5]}
        self.info: object = {"dialect": "trunkline"}
        self.sources: object = {"0": {"endpoint": "tcp://*:5557", "replay_endpoint": None}, "x": {}, "1": {"endpoint": 5}}
        self.scrape = (404, b"")
        self.sleeping: object = None  # None: there is no such page
        self.asked_sleeping = 0
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._told)
        app.router.add_get("/server_info", self._told)
        app.router.add_get("/kv_event_sources", self._told)
        app.router.add_get("/is_sleeping", self._sleeping)
        app.router.add_get("/prometheus/metrics", self._prometheus)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.checks += 1
        return web.Response(status=self.health, headers={"location": "/elsewhere"})

    async def _sleeping(self, request: web.Request) -> web.Response:
        self.asked_sleeping += 1
        return web.Response(status=404) if self.sleeping is None else web.json_response(self.sleeping)

    async def _prometheus(self, request: web.Request) -> web.Response:
        return web.Response(status=self.scrape[0], body=self.scrape[1])

    async def _told(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.told_status != 200:
            return web.Response(status=self.told_status)
        if request.path == "/v1/models" and self.raw_models is not None:
            return web.Response(body=self.raw_models, content_type="application/json")
        value = {"/v1/models": self.models, "/server_info": self.info, "/kv_event_sources": self.sources}[request.path]
        return web.json_response(value) if value is not None else web.Response(status=404)


class House:
    """One engine, one fleet, one monitor, and a record of what the monitor said."""

    def __init__(self, session: ClientSession) -> None:
        self.engine = Engine()
        self.fleet = Fleet(Index(), Rates())
        self.up: list[Facts] = []
        self.down = 0
        self.asleep = 0
        self.unheard = False
        self.now = 0.0
        self.monitor = HealthMonitor(
            self.fleet,
            QUICK,
            session,
            on_up=self._up,
            on_down=self._down,
            on_asleep=self._asleep,
            unheard=lambda replica: self.unheard,
            clock=lambda: self.now,
        )
        self.replica: Replica

    async def watch(self, **options: object) -> None:
        url = f"http://127.0.0.1:{self.engine.port}"
        self.replica = self.fleet.add("r", Address.parse(url), dialect="openai")
        self.monitor.watch(self.replica, ReplicaSettings(url=url, **options))  # type: ignore[arg-type]

    async def _up(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        self.up.append(facts)

    def _down(self, replica: Replica) -> None:
        self.down += 1

    def _asleep(self, replica: Replica) -> None:
        self.asleep += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with ClientSession() as session:
        house = House(session)
        await house.engine.start()
        yield house
        await house.monitor.stop()
        await house.engine.stop()


async def test_a_replica_is_eligible_only_after_its_checks_and_its_facts_are_learned(house: House) -> None:
    await house.watch()
    assert not house.fleet.view.eligible[0]
    await house.until(lambda: house.replica.healthy)
    assert house.fleet.view.eligible[0]
    assert house.up == [Facts(("m", "m-alias"), "trunkline", {0: ("tcp://*:5557", None)})]
    assert house.replica.dialect.name == "trunkline"
    assert house.fleet.models() == ("m", "m-alias")


async def test_configured_facts_win_over_what_the_replica_says(house: House) -> None:
    await house.watch(dialect="openai", events="tcp://a:1")
    await house.until(lambda: house.replica.healthy)
    assert house.up == [Facts(("m", "m-alias"), "openai", {})]


@pytest.mark.parametrize(
    ("owners", "dialect"),
    [
        (["vllm", "vllm"], "vllm"),
        (["sglang"], "sglang"),
        (["tensorrt_llm"], "trtllm"),
        (["vllm", "sglang"], "openai"),
        (["vllm", None], "openai"),
        (["trunkline"], "openai"),  # another gateway: it lists models so, and takes no ids beside its clients' own
        ([["vllm"]], "openai"),
        ([], "openai"),
    ],
)
async def test_the_owner_of_the_models_names_the_dialect_where_all_agree(
    house: House, owners: list[object], dialect: str
) -> None:
    house.engine.info = house.engine.sources = None
    house.engine.models = {"data": [{"id": f"m{number}", "owned_by": owner} for number, owner in enumerate(owners)]}
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.replica.dialect.name == dialect


async def test_the_setting_wins_over_the_owner(house: House) -> None:
    house.engine.models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    await house.watch(dialect="sglang")
    await house.until(lambda: house.replica.healthy)
    assert house.replica.dialect.name == "sglang"
    assert house.up[-1].repeats_stores  # as that engine does


async def test_an_engine_that_knows_none_of_our_pages_is_plain_openai(house: House) -> None:
    house.engine.models = house.engine.info = house.engine.sources = None
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.up == [Facts((), "openai", {})]


SGLANG = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "block_size": 16, "dp_size": 2}


@pytest.mark.parametrize(
    ("kv_events", "sources"),
    [
        (SGLANG, {0: ("tcp://*:5557", None), 1: ("tcp://*:5558", None)}),
        (
            SGLANG | {"endpoint_host": "::", "replay_endpoint_port_base": 5657},
            {0: ("tcp://[::]:5557", "tcp://[::]:5657"), 1: ("tcp://[::]:5558", "tcp://[::]:5658")},
        ),
        (SGLANG | {"dp_size": None}, {}),
        (SGLANG | {"publisher": "null"}, {}),
        ({}, {}),
    ],
)
async def test_sglang_tells_where_its_events_are(
    house: House, kv_events: dict[str, object], sources: dict[int, tuple[str, str | None]]
) -> None:
    """FC-21, edge case 17: one port per rank from the base on; a repeated store is no second copy there."""
    house.engine.sources = None
    house.engine.info = {"kv_events": kv_events}
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.up == [Facts(("m", "m-alias"), "openai", sources, "kv" if sources else "", repeats_stores=True)]


async def test_vllm_tells_its_topic_and_the_owner_of_a_model_names_the_engine(house: House) -> None:
    """Edge case 17: the endpoints may be configured, and the engine is still known."""
    house.engine.sources = {
        "1": {"endpoint": "tcp://a:2", "replay_endpoint": "tcp://a:3", "topic": "kv@pod"},
        "99999": {"endpoint": ""},
    }
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.up[-1] == Facts(("m", "m-alias"), "trunkline", {1: ("tcp://a:2", "tcp://a:3")}, "kv@pod")
    await house.monitor.unwatch(house.replica)
    house.fleet.remove("r")
    house.engine.models = {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}
    await house.watch(events="tcp://a:1")
    await house.until(lambda: house.replica.healthy)
    assert house.up[-1] == Facts(("m",), "trunkline", repeats_stores=True)


TOKENS_PER_BLOCK = b"# TYPE trtllm_kv_cache_tokens_per_block gauge\ntrtllm_kv_cache_tokens_per_block%s\ntrtllm_x 1\n"


@pytest.mark.parametrize(
    ("status", "scrape", "block_tokens"),
    [
        (200, TOKENS_PER_BLOCK % b'{model_name="m",engine_type="x"} 64.0', 64),
        (200, TOKENS_PER_BLOCK % b" 32", 32),
        (200, TOKENS_PER_BLOCK % b" 1e9", 0),
        (200, b"x" * 2_000_000, 0),
        (500, b"", 0),
        (404, b"", 0),
    ],
)
async def test_tensorrt_llm_is_polled_where_it_publishes_nothing(
    house: House, status: int, scrape: bytes, block_tokens: int
) -> None:
    """Edge case 17: blocks of the size its metrics tell; without them the size is learned from the events."""
    house.engine.sources, house.engine.info = {}, {}
    house.engine.models = {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}
    house.engine.scrape = (status, scrape)
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.up == [Facts(("m",), "trtllm", repeats_stores=True, has_queue=True, queue_block_tokens=block_tokens)]


@pytest.mark.parametrize("options", [{"poll_events": False}, {"block_tokens": 128}])
async def test_polling_can_be_switched_off_and_the_size_of_blocks_set(house: House, options: dict[str, object]) -> None:
    """Edge case 38: one reader only, and that may be another one."""
    house.engine.sources, house.engine.info = {}, {}
    house.engine.models = {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}
    house.engine.scrape = (200, TOKENS_PER_BLOCK % b" 32")
    await house.watch(**options)
    await house.until(lambda: house.replica.healthy)
    polls = "poll_events" not in options
    assert house.up == [Facts(("m",), "trtllm", repeats_stores=True, has_queue=polls, queue_block_tokens=128 if polls else 0)]


async def test_one_failure_is_not_down_and_several_are(house: House) -> None:
    """FC-32, FC-25: it takes several in a row, it is told once, and load stays as it was."""
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    house.fleet.load(0, requests=20)
    house.engine.health = 503
    checks = house.engine.checks
    await house.until(lambda: not house.replica.healthy)
    assert house.engine.checks - checks >= QUICK.failures
    await house.until(lambda: house.engine.checks > checks + 6)
    assert house.down == 1
    assert house.fleet.view.in_flight[0] == 20
    house.engine.health = 200
    await house.until(lambda: house.replica.healthy)
    assert len(house.up) == 2


async def test_a_dead_process_is_noticed_and_its_return_too(house: House) -> None:
    """FC-33: recovery is noticed by probing alone."""
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    await house.engine.stop()
    await house.until(lambda: not house.replica.healthy)
    assert house.down == 1
    await house.engine.start()
    await house.until(lambda: house.replica.healthy)


async def test_a_replica_that_sleeps_says_so_at_each_check(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """FC-11, case 2: its cache is gone, and nothing comes over its stream; one without the page is not asked all the time."""
    caplog.set_level("INFO")
    await house.watch()
    await house.until(lambda: house.engine.checks >= 6)
    assert (house.engine.asked_sleeping, house.asleep) == (1, 0)
    house.engine.sleeping = {"is_sleeping": False}
    house.now += 31
    await house.until(lambda: house.engine.asked_sleeping >= 4)
    assert house.asleep == 0
    house.engine.sleeping = {"is_sleeping": True}
    await house.until(lambda: house.asleep >= 3)
    house.engine.sleeping = {"is_sleeping": False}
    await house.until(lambda: "replica sleep replica=r asleep=False" in caplog.text)
    assert (caplog.text.count("asleep=True"), house.down, house.replica.healthy) == (1, 0, True)


async def test_a_redirecting_health_page_is_alive_but_not_followed(house: House) -> None:
    """FC-58: a replica is where it was said to be."""
    house.engine.health = 302
    await house.watch()
    await house.until(lambda: house.replica.healthy)


async def test_a_fault_wakes_the_next_check(house: House) -> None:
    slow = HealthMonitor(house.fleet, Health(interval_s=60), house.monitor._session, on_up=house._up, on_down=house._down)
    url = f"http://127.0.0.1:{house.engine.port}"
    replica = house.fleet.add("slow", Address.parse(url), dialect="openai")
    slow.watch(replica, ReplicaSettings(url=url))
    await house.until(lambda: replica.healthy)
    checks = house.engine.checks
    slow.fault(replica)
    await house.until(lambda: house.engine.checks > checks)
    await slow.stop()


async def test_a_replica_whose_events_are_not_heard_is_asked_again_but_not_all_the_time(house: House) -> None:
    """FC-03: a process that came back between two checks may announce its blocks somewhere else."""
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    house.unheard = True
    house.engine.sources = {"0": {"endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:6001"}}
    checks = house.engine.checks
    await house.until(lambda: house.engine.checks > checks + 3)
    assert len(house.up) == 1
    house.now += 2
    await house.until(lambda: len(house.up) == 2)
    assert house.up[-1].event_sources == {0: ("tcp://*:6000", "tcp://*:6001")}
    assert house.down == 0


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_healthy_replica_too_busy_to_tell_keeps_what_it_told(house: House, status: int) -> None:
    """FC-32: its models, event streams and view outlive an answer that says nothing."""
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    house.engine.told_status = status
    house.now += 60
    asked = house.engine.asked
    await house.until(lambda: house.engine.asked > asked)
    checks = house.engine.checks
    await house.until(lambda: house.engine.checks > checks + 2)
    assert (house.replica.healthy, house.down, len(house.up)) == (True, 0, 1)
    assert house.fleet.models() == ("m", "m-alias")


async def test_a_replica_that_never_comes_up_is_logged_once(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.engine.health = 500
    await house.watch()
    await house.until(lambda: house.engine.checks > 6)
    assert [record.message.split(" failures")[0] for record in caplog.records] == ["replica not up replica=r"]
    assert not house.replica.healthy


async def test_models_a_replica_begins_to_serve_later_are_learned(house: House) -> None:
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    house.engine.models = {"data": [{"id": "m"}, {"id": "later"}]}
    house.now += 30
    await house.until(lambda: house.fleet.models() == ("m", "later"))


async def test_a_long_answer_is_read_whole_and_an_endless_one_is_refused(house: House) -> None:
    names = [f"adapter-{number:05}" for number in range(6_000)]  # more than one read of a socket
    house.engine.models = {"data": [{"id": name} for name in names]}
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.fleet.models() == tuple(names)
    house.engine.raw_models = b" " * 2_000_000
    house.now += 60
    asked = house.engine.asked
    await house.until(lambda: house.engine.asked > asked)
    checks = house.engine.checks
    await house.until(lambda: house.engine.checks > checks + 2)
    assert house.fleet.models() == tuple(names)


@pytest.mark.parametrize("models", [b"[" * 100_000, b"\xff", b"{}", b'{"data":[{"id":"a\\nb"},{"id":""},{"id":"a\\ud800"}]}'])
async def test_no_answer_of_a_replica_ends_its_checks(house: House, models: bytes) -> None:
    """FC-62: and no name that could not stand in a log line or an answer is taken."""
    house.engine.raw_models = models
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.fleet.models() == ()
    house.engine.health = 500
    await house.until(lambda: not house.replica.healthy)


async def test_adapters_and_contexts_are_learned_from_the_models_a_replica_lists(house: House) -> None:
    """FC-18: an entry with a parent is an adapter; what is no name or no number is left out."""
    house.engine.models = {
        "data": [
            {"id": "tuned", "parent": "m"},
            {"id": "m", "parent": None, "max_model_len": 4096},
            {"id": "odd", "parent": 3, "max_model_len": True},
            {"id": "own", "parent": "own", "max_model_len": -1},
        ]
    }
    await house.watch()
    await house.until(lambda: house.replica.healthy)
    assert house.fleet.cards() == [Card("tuned", parent="m"), Card("m", context_tokens=4096), Card("odd"), Card("own")]
    assert (house.fleet.canonical("tuned"), house.fleet.adapter("tuned"), house.fleet.adapter("m")) == ("m", "tuned", None)
