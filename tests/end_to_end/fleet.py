"""A fleet of real processes, started by the real commands, and what tests ask of it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import openai
import orjson

from benchmarks.demo.http import get_json, post_json
from benchmarks.demo.processes import Process, free_ports, trunkline

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """The first answer of `condition` that is not None; fails naming what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := condition()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


class Fleet:
    """Replicas `r1`.. and one gateway. Ports are fixed at the start, so that a killed replica can come back at its place."""

    def __init__(self, logs: Path, *, replicas: int = 2, model: str = "tiny", policy: str = "cost", extra: str = "") -> None:
        self._logs = logs
        self._model = model
        self._extra = extra
        self._ports = [free_ports(3) for _ in range(replicas)]
        self._stack = ExitStack()
        self.replicas: list[Process] = [self.start_replica(number) for number in range(replicas)]
        for replica in self.replicas:
            replica.wait_ready(120)
        self.gateway = self._start_gateway(policy)

    def url(self, number: int) -> str:
        """Where a replica listens."""
        return f"http://127.0.0.1:{self._ports[number][0]}"

    @property
    def base(self) -> str:
        """The data plane's URL."""
        return f"http://127.0.0.1:{orjson.loads(self.gateway.ready_line)['data_port']}"

    @property
    def control(self) -> str:
        """The control plane's URL."""
        return f"http://127.0.0.1:{orjson.loads(self.gateway.ready_line)['control_port']}"

    def client(self, base: str | None = None) -> openai.OpenAI:
        """The official client, without retries of its own."""
        return openai.OpenAI(base_url=f"{base or self.base}/v1", api_key="unused", max_retries=0, timeout=60)

    def start_replica(self, number: int) -> Process:
        """Start (or restart) one replica at its ports."""
        http, events, replay = self._ports[number]
        command = trunkline(
            "replica", "--model", self._model, "--host", "127.0.0.1", "--port", str(http), "--threads", "1",
            "--events", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}", "--served-model-name", "m",
            *self._extra.split(),
        )  # fmt: skip
        process = Process(f"r{number + 1}", command, self._logs / f"r{number + 1}-{time.monotonic_ns()}.log")
        self._stack.callback(process.stop)
        return process

    def state(self, number: int) -> dict[str, Any]:
        """One replica as the gateway sees it."""
        rows = get_json(f"{self.control}/replicas")["replicas"]
        row: dict[str, Any] = next(row for row in rows if row["name"] == f"r{number + 1}")
        return row

    def receipts(self, limit: int = 10) -> list[dict[str, Any]]:
        """The latest receipts, newest first."""
        rows: list[dict[str, Any]] = get_json(f"{self.control}/receipts?limit={limit}")["receipts"]
        return rows

    def metric(self, base: str, name: str) -> float:
        """The sum of a metric's samples on a /metrics page."""
        with urllib.request.urlopen(f"{base}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def clear(self) -> None:
        """Empty every replica's cache and wait until the gateway knows."""
        for number in range(len(self.replicas)):
            post_json(f"{self.url(number)}/reset_prefix_cache")
        wait_for(lambda: get_json(f"{self.control}/index/stats")["blocks"] == 0 or None, 5, "the gateway's view to be empty")

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()

    def _start_gateway(self, policy: str) -> Process:
        replicas = [f"{self.url(number)},name=r{number + 1}" for number in range(len(self._ports))]
        command = trunkline(
            "serve", "--json", "--policy", policy, "--tokenizer", "smollm2", "--host", "127.0.0.1", "--port", "0",
            "--control-port", "0", *(word for replica in replicas for word in ("--replica", replica)),
        )  # fmt: skip
        gateway = Process("gateway", command, self._logs / "gateway.log")
        self._stack.callback(gateway.stop)
        control = orjson.loads(gateway.wait_ready(30))["control_port"]

        def ready() -> bool | None:
            status = get_json(f"http://127.0.0.1:{control}/status")
            live = [rank["freshness"] == "live" for replica in status["replicas"] for rank in replica["ranks"]]
            return (all(live) and status["tokenizer"] == "ready") or None

        wait_for(ready, 30, "all replicas to be followed")
        return gateway
