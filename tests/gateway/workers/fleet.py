"""Replicas with a fake model and a gateway of several processes in front of them, all started by the real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.fakes.replica_process import TEMPLATE, ReplicaProcess
from tests.fakes.tokenizer_folder import write_tokenizer_folder

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
TOKEN = "an-administrator's-token"


def until(condition: Callable[[], T | None], what: str, within_s: float = 20) -> T:
    """The first answer that is neither None nor False."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = condition()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}")


@dataclass(frozen=True)
class Answer:
    """What became of a request. worker: which one answered, by the start of its request ids."""

    status: int
    worker: str
    replica: str
    predicted: int
    cached: int


class Fleet:
    """The processes of one test."""

    def __init__(
        self, folder: Path, *, replicas: int = 2, workers: int = 2, step_s: float = 0.0, more: Mapping[str, object] | None = None
    ) -> None:
        """more: settings of the gateway."""
        self._folder = folder
        self._tokenizer = write_tokenizer_folder(folder / "tokenizer", template=TEMPLATE)
        self.log = folder / "gateway.log"
        self.replicas = [self.new_replica(f"r{number}", step_s=step_s) for number in range(replicas)]
        config = folder / "gateway.yaml"
        entries = [{"url": replica.url, "name": f"r{number}"} for number, replica in enumerate(self.replicas)]
        usual = {"replicas": entries, "admin_networks": ["127.0.0.0/8"], "guess_ttl_s": 0.5}
        config.write_text(json.dumps({**usual, **(more or {})}))
        words = ["--config", str(config), "--workers", str(workers), "--tokenizer", str(self._tokenizer)]
        with self.log.open("wb") as log:
            self._gateway = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "--json", *words, *LOOPBACK],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TRUNKLINE_ADMIN_TOKEN": TOKEN},
            )
        assert self._gateway.stdout is not None
        line = self._gateway.stdout.readline()
        assert line, f"the gateway did not start:\n{self.log.read_text()}"
        ready = json.loads(line)
        self.data_port, self.control_port = ready["data_port"], ready["control_port"]

    def line(self) -> str:
        """The next line of the gateway's stdout, behind the one that says it is ready."""
        assert self._gateway.stdout is not None
        return self._gateway.stdout.readline().decode()

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._gateway.pid

    def new_replica(self, name: str, *, step_s: float = 0.0) -> ReplicaProcess:
        """A replica with events and replay on free ports."""
        sockets = {"events": "tcp://127.0.0.1:0", "replay": "tcp://127.0.0.1:0"}
        log = self._folder / f"{name}.log"
        return ReplicaProcess(self._tokenizer, log, num_blocks=4000, block_tokens=4, step_s=step_s, **sockets)

    def get(self, path: str) -> Any:
        """A page of the control plane."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """The same as it is."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.control_port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def change(self, method: str, path: str, body: Mapping[str, object] | None = None) -> int:
        """An administrator's request; its status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.control_port}{path}", data, method=method)
        request.add_header("authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def metrics(self) -> dict[str, float]:
        """Each sample of /metrics by its name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.control_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def processes(self) -> dict[str, dict[str, Any]]:
        """The gateway's processes by name."""
        return {row["name"]: row for row in self.get("/status")["processes"]}

    def is_live(self, replicas: int = 2) -> bool:
        """All processes run, all views are live, all workers have the tokenizer."""
        status = self.get("/status")
        up = all(row["up"] for row in status["processes"])
        fresh = [rank["freshness"] for replica in status["replicas"] for rank in replica["ranks"]]
        return up and fresh == ["live"] * replicas and status["tokenizer"] == "ready"

    def chat(self, text: str, *, max_tokens: int = 1) -> Answer:
        """One request on a new connection."""
        body = {"model": "fake", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
        request = urllib.request.Request(f"http://127.0.0.1:{self.data_port}/v1/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()
            told = answer.headers
            return Answer(
                answer.status,
                told["x-trunkline-request-id"].partition("-")[0],
                told["x-trunkline-replica"],
                int(told["x-trunkline-predicted-cached-tokens"]),
                int(told["x-trunkline-cached-tokens"]),
            )

    def by_worker(self, text: str, workers: int = 2) -> dict[str, Answer]:
        """The latest answer of each worker to the same prompt; new connections go to any of them."""
        found: dict[str, Answer] = {}
        for _ in range(200):
            answer = self.chat(text)
            found[answer.worker] = answer
            if len(found) == workers:
                return found
        raise AssertionError(f"only {len(found)} workers answered")

    def terminate(self) -> None:
        """SIGTERM to the supervisor."""
        self._gateway.send_signal(signal.SIGTERM)

    def wait(self, within_s: float = 20) -> int:
        """The gateway's exit status."""
        return self._gateway.wait(within_s)

    def close(self) -> None:
        """End everything."""
        if self._gateway.poll() is None:
            self._gateway.send_signal(signal.SIGTERM)
            try:
                self._gateway.wait(20)
            except subprocess.TimeoutExpired:
                self._gateway.kill()
                self._gateway.wait()
        if self._gateway.stdout is not None:
            self._gateway.stdout.close()
        for replica in self.replicas:
            replica.kill()


LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--control-port", "0")
