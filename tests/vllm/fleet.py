"""The gateway before both engines, and what is asked of them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.demo.processes import Process, trunkline
from tests.vllm.engines import MODEL, Vllm

T = TypeVar("T")
_ANSWER_S = 180.0
_FOLLOWED_S = 120.0


@dataclass(frozen=True)
class Told:
    """A whole answer. fields: of its head, names in lower case."""

    status: int
    fields: dict[str, str]
    body: Any

    @property
    def usage(self) -> dict[str, Any]:
        """Counts of the engine."""
        return dict(self.body["usage"])

    @property
    def cached_tokens(self) -> int:
        """What the engine found in its cache."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def text(self) -> str:
        """What the model said."""
        return str(self.body["choices"][0]["message"]["content"])


def ask(base: str, messages: list[dict[str, str]], **options: object) -> Told:
    """One chat, answered whole; an error is an answer like any other."""
    body = json.dumps({"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8, **options}).encode()
    request = urllib.request.Request(f"{base}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return Told(answer.status, {name.lower(): value for name, value in answer.headers.items()}, json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return Told(error.code, {name.lower(): value for name, value in error.headers.items()}, json.loads(error.read()))


def wait_for(condition: Callable[[], T | None], what: str, within_s: float) -> T:
    """The first answer that is neither None nor False; raises AssertionError naming what was waited for."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.05)
    return found


class Front:
    """`trunkline serve` with exact tokens, and its control plane."""

    def __init__(self, engines: list[Vllm], tokenizer: Path, folder: Path) -> None:
        config = {
            "listen": {"host": "127.0.0.1", "port": 0, "control_port": 0},
            "replicas": [{"name": e.name, "url": e.url, "events": e.events, "replay": e.replay} for e in engines],
            "tokenizer": str(tokenizer),
            "health": {"interval_s": 1.0, "timeout_s": 10.0, "failures": 3},  # a busy CPU is not a dead engine
        }
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.process = Process("gateway", trunkline("serve", "--config", str(path), "--json"), folder / "gateway.log")
        ports = json.loads(self.process.wait_ready(60))
        self.base, self.control = (f"http://127.0.0.1:{ports[name]}" for name in ("data_port", "control_port"))

    def followed(self) -> None:
        """Wait until the events of all replicas are followed and prompts are tokenized."""
        wait_for(lambda: self._follows_all() or None, "all replicas to be followed", _FOLLOWED_S)

    def _follows_all(self) -> bool:
        status = self.page("status")
        ranks = [rank["freshness"] for replica in status["replicas"] for rank in replica["ranks"]]
        return all(fresh in ("live", "partial") for fresh in ranks) and bool(status["tokenizer"] == "ready")

    def page(self, path: str) -> Any:
        """A page of the control plane."""
        with urllib.request.urlopen(f"{self.control}/{path}", timeout=10) as answer:
            return json.load(answer)

    def replica(self, name: str) -> Any:
        """One replica as the gateway sees it."""
        return next(row for row in self.page("replicas")["replicas"] if row["name"] == name)

    def receipt(self) -> Any:
        """The newest one."""
        return self.page("receipts?limit=1")["receipts"][0]

    def blocks(self) -> int:
        """Known of all replicas."""
        return int(self.page("index/stats")["blocks"])


def running(engine: Vllm) -> float:
    """Requests in an engine, running or waiting, by its own metrics."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] in names)
