"""Gateway, relay, replica and Redis as processes: what one request left in a cache is credited to the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.demo.http import get_json, post_json
from benchmarks.demo.processes import Process, trunkline
from tests.fakes.redis_server import RedisServer
from tests.fakes.replica_process import TEMPLATE, ReplicaProcess
from tests.fakes.tokenizer_folder import write_tokenizer_folder


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.05)


class House:
    """One replica behind a relay, and a gateway; `relay` may be stopped."""

    def __init__(self, folder: Path, redis: RedisServer, stack: ExitStack) -> None:
        tokenizer = write_tokenizer_folder(folder / "tokenizer", template=TEMPLATE)
        replica = ReplicaProcess(
            tokenizer,
            folder / "replica.log",
            num_blocks=200,
            block_tokens=4,
            events="tcp://127.0.0.1:0",
            replay="tcp://127.0.0.1:0",
        )
        stack.callback(replica.kill)
        sockets = f"r={replica.ready['events']},{replica.ready['replay']}"
        secret = {"TRUNKLINE_REDIS_URL": redis.url}
        self.relay = Process("relay", trunkline("relay", "--replica", sockets, "--lease-s", "1"), folder / "relay.log", secret)
        stack.callback(self.relay.stop)
        command = trunkline(
            "serve", "--replica", f"{replica.url},name=r", "--tokenizer", str(tokenizer), "--json", "--host", "127.0.0.1",
            "--port", "0", "--control-port", "0",
        )  # fmt: skip
        gateway = Process("gateway", command, folder / "gateway.log", secret)
        stack.callback(gateway.stop)
        ready = orjson.loads(gateway.wait_ready(60))
        self.base, self.control = (f"http://127.0.0.1:{ready[port]}" for port in ("data_port", "control_port"))

    @property
    def rank(self) -> dict[str, Any]:
        """The replica's rank as the gateway sees it."""
        row: dict[str, Any] = get_json(f"{self.control}/replicas")["replicas"][0]["ranks"][0]
        return row

    def is_(self, freshness: str, *, relayed: bool) -> bool:
        rank = self.rank
        return bool(rank["freshness"] == freshness and rank["relayed"] is relayed)

    def ask(self, text: str) -> int:
        """A request; returns how many tokens of its prompt the gateway expected to be cached."""
        post_json(f"{self.base}/v1/completions", {"model": "fake", "prompt": text, "max_tokens": 2})
        receipt = get_json(f"{self.control}/receipts?limit=1")["receipts"][0]
        return int(receipt["predicted_cached_tokens"])


@pytest.fixture
def house(redis: RedisServer, tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(tmp_path, redis, stack)


def test_serve_hears_its_replica_by_the_relay_and_by_itself_when_that_is_stopped(house: House) -> None:
    """FC-63: the credit is what the relay told, and it is there again without one."""
    wait_for(lambda: house.is_("live", relayed=True))
    wait_for(lambda: get_json(f"{house.control}/status")["tokenizer"] == "ready")
    prompt = "hello the user " * 20
    assert house.ask(prompt) == 0
    wait_for(lambda: get_json(f"{house.control}/index/stats")["blocks"] > 10)
    assert house.ask(prompt + "again") > 40
    assert house.relay.stop() == 0
    wait_for(lambda: house.is_("live", relayed=False))
    assert house.ask(prompt + "and again") > 40
