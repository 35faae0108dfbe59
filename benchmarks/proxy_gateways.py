"""The gateways of the proxy benchmark: all behind one engine, on one core; engine, events and load are on the other."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo.processes import free_ports
from benchmarks.environments import environment
from benchmarks.processes import Started, build_mock_engine

ENGINES = 8
GATEWAY_CORE, LOAD_CORE = 0, 1
DIRECT, RAW, PLAIN, OURS, OURS_BARE, SMG = "direct", "raw relay", "aiohttp proxy", "trunkline", "trunkline, no tokens", "smg"
COMMAND = [sys.executable, "-c", "import sys; from gateway.cli import main; sys.exit(main(sys.argv[1:]))"]
SMG_PACKAGE = "smg==1.13.0"
_BINARIES = Path(__file__).with_name("bin")


@dataclass(frozen=True)
class Gateway:
    """One process under test; pid is None for the direct connection."""

    name: str
    url: str
    pid: int | None


class Fleet:
    """One engine of eight ports, its events, and gateways in front of it, until the stack is closed."""

    def __init__(self, stack: ExitStack, tokenizer: str, *, events: bool) -> None:
        """events: ranks publish KV events, which our gateway follows."""
        self._stack = stack
        self._tokenizer = tokenizer
        engine = stack.enter_context(Started([str(build_mock_engine(_BINARIES)), str(ENGINES)], LOAD_CORE))
        self.urls = [f"http://127.0.0.1:{port}" for port in engine.first_line.split()]
        self._replicas = self.urls
        if events:
            source = stack.enter_context(Started([sys.executable, "-m", "benchmarks.event_source", str(ENGINES)], LOAD_CORE))
            places = json.loads(source.first_line)
            self._replicas = [
                f"{url},events={place},replay={replay}" for url, (place, replay) in zip(self.urls, places, strict=True)
            ]

    def direct(self) -> Gateway:
        """No gateway at all."""
        return Gateway(DIRECT, self.urls[0], None)

    def plain(self) -> Gateway:
        """The aiohttp proxy."""
        return self._printing_its_port(PLAIN, "benchmarks.aiohttp_proxy")

    def raw(self) -> Gateway:
        """The relay of bytes."""
        return self._printing_its_port(RAW, "benchmarks.raw_relay")

    def ours(self, *options: str) -> Gateway:
        """`trunkline serve` with exact tokens and its default policy."""
        return self._serve(OURS, "--policy", "cost", "--tokenizer", self._tokenizer, *options)

    def bare(self) -> Gateway:
        """`trunkline serve` that only forwards."""
        return self._serve(OURS_BARE, "--policy", "round_robin")

    def smg(self, folder: Path) -> Gateway:
        """smg with its cache-aware policy, from its own environment."""
        port, metrics_port = free_ports(2)
        command = [str(folder / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *self.urls]
        command += ["--policy", "cache_aware", "--prometheus-port", str(metrics_port), "--log-level", "error"]
        started = self._stack.enter_context(Started([*command, "--disable-tokenizer-autoload"], GATEWAY_CORE, says=False))
        return Gateway(SMG, f"http://127.0.0.1:{port}", started.pid)

    def _serve(self, name: str, *options: str) -> Gateway:
        replicas = [argument for replica in self._replicas for argument in ("--replica", replica)]
        command = [*COMMAND, "serve", *replicas, "--host", "127.0.0.1", "--port", "0", "--control-port", "0", "--json"]
        started = self._stack.enter_context(Started([*command, "--log-level", "warning", *options], GATEWAY_CORE))
        return Gateway(name, f"http://127.0.0.1:{json.loads(started.first_line)['data_port']}", started.pid)

    def _printing_its_port(self, name: str, module: str) -> Gateway:
        started = self._stack.enter_context(Started([sys.executable, "-m", module, *self.urls], GATEWAY_CORE))
        return Gateway(name, f"http://127.0.0.1:{started.first_line}", started.pid)


def smg_environment() -> Path:
    """Where smg is installed; raises CannotInstall."""
    return environment("smg", [SMG_PACKAGE], say=lambda text: print(text, file=sys.stderr))


def wait_until_ready(gateways: Sequence[Gateway], within_s: float = 90.0) -> None:
    """Ask each until it answers, with token counts where they belong to what is measured."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "ready?"}]}).encode()
    for gateway in gateways:
        request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        deadline = time.monotonic() + within_s
        while not _answers(request, needs_tokens=gateway.name == OURS):
            if time.monotonic() > deadline:
                raise SystemExit(f"error: {gateway.name} was not ready within {within_s:.0f} s")
            time.sleep(0.2)


def _answers(request: urllib.request.Request, *, needs_tokens: bool) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return not needs_tokens or "x-trunkline-prompt-tokens" in answer.headers
    except OSError:
        return False
