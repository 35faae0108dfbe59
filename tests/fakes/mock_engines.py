"""Fake engines in a process of their own, started by the command, and a gateway in front of them."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from benchmarks.demo.processes import Process, trunkline
from events.endpoints import rank_endpoint
from events.supervise import EventStream
from events.times import StreamTimes
from events.types import Batch, Event, Freshness, NamespaceHint, Stored
from radix.index import Index
from tests.fakes.publisher import until

T = TypeVar("T")
FAST = ("--prefill-rate", "1000000", "--decode-s", "0.001", "--sequence-s", "0")
TIMES = StreamTimes(settle_s=0.02, replay_timeout_s=0.5, retry_replay_s=0.1, backoff_s=0.02, silence_grace_s=60)


@dataclass(frozen=True)
class Reply:
    """An HTTP answer read whole."""

    status: int
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cached_tokens(self) -> int:
        """Of its usage."""
        return int(self.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def predicted(self) -> int:
        """What the gateway expected to be cached."""
        return int(self.headers["x-trunkline-predicted-cached-tokens"])

    @property
    def replica(self) -> str:
        """Who answered, as the gateway says."""
        return self.headers["x-trunkline-replica"]


def call(url: str, body: object = None, *, method: str | None = None, headers: dict[str, str] | None = None) -> Reply:
    """One request on a connection of its own; an error status is an answer like any other."""
    data = None if body is None else json.dumps(body).encode()
    fields = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, method=method, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return Reply(answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()})
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.read(), {name.lower(): value for name, value in error.headers.items()})


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
    """The first answer of `condition` that is neither None nor False; fails naming what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout_s} s: {what}")


class Engines:
    """One process of `trunkline mock-engine`. engines: what the ready line says of each."""

    def __init__(self, log: Path, *options: str, events: bool = True) -> None:
        loopback = ("--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*") if events else ()
        command = trunkline("mock-engine", "--host", "127.0.0.1", "--port", "0", "--json", *loopback, *options)
        self.process = Process("mock-engine", command, log)
        self.engines: list[dict[str, Any]] = []

    def ready(self) -> Engines:
        """Wait until it serves."""
        self.engines = json.loads(self.process.wait_ready(20))["engines"]
        return self

    def url(self, number: int = 0) -> str:
        """Where one engine listens."""
        return f"http://127.0.0.1:{self.engines[number]['port']}"

    def state(self, number: int = 0) -> Any:
        """What one engine says of itself."""
        return call(f"{self.url(number)}/mock/state").json()

    def rank(self, number: int = 0, rank: int = 0) -> Any:
        """One rank of it."""
        return self.state(number)["ranks"][rank]

    def fault(self, number: int = 0, **faults: object) -> None:
        """Switch faults on or off."""
        reply = call(f"{self.url(number)}/mock/faults", faults)
        assert reply.status == 200, reply.body

    def hits(self, number: int = 0) -> dict[str, int]:
        """How often each fault has struck."""
        return dict(call(f"{self.url(number)}/mock/faults").json()["hits"])

    def calm(self) -> None:
        """All faults of all engines off."""
        for number in range(len(self.engines)):
            call(f"{self.url(number)}/mock/faults", method="DELETE")

    def restart(self, number: int = 0, **how: object) -> None:
        """Begin a new life, and wait for it."""
        epoch = self.state(number)["epoch"]
        assert call(f"{self.url(number)}/mock/restart", how).status == 200

        def reborn() -> bool:
            try:
                return bool(self.state(number)["epoch"] != epoch)
            except OSError:  # the HTTP side is down with it
                return False

        wait_for(reborn, "a new epoch")

    def complete(self, prompt: object, number: int = 0, *, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        """A completion from one engine itself."""
        return call(f"{self.url(number)}/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields}, headers=headers)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self.process.stop()


@dataclass
class Follower:
    """One rank's view as a gateway would have it."""

    stream: EventStream
    index: Index
    holder: int
    engines: Engines
    number: int
    rank: int
    states: list[Freshness] = field(default_factory=list)

    def agrees(self) -> bool:
        """Its view is what the engine says it holds."""
        return self.index.digest(self.holder) == self.own_view()

    def own_view(self) -> bytes:
        """The digest of what the engine says it holds, built without its events."""
        told = call(f"{self.engines.url(self.number)}/mock/cache?rank={self.rank}").json()
        index = Index()
        holder = index.holder("r", 0)
        for block in told["blocks"]:
            tokens = np.array(block["tokens"], np.int32)
            hint = NamespaceHint(block["adapter"], block["salt"])
            event: Event = Stored((block["hash"],), block["parent"], tokens, told["block_tokens"], hint)
            copies = block["copies"] if self.index._of(self.holder).counting else 1
            index.apply(holder, Batch(0, 0, 0.0, (event,) * copies))
        return index.digest(holder)


@asynccontextmanager
async def following(engines: Engines, number: int = 0, rank: int = 0, *, counting: bool = True) -> AsyncIterator[Follower]:
    """Follow one rank from its start on, and stop at the end."""
    index = Index()
    holder = index.holder("r", rank, counting=counting)
    told = engines.engines[number]
    states: list[Freshness] = []
    stream = EventStream(
        index,
        holder,
        rank_endpoint(told["events"][0], rank),
        rank_endpoint(told["replay"][0], rank),
        on_change=lambda changed: states.append(stream.freshness),
        times=TIMES,
    )
    stream.start()
    follower = Follower(stream, index, holder, engines, number, rank, states)
    try:
        await until(lambda: stream.connected and stream.freshness in (Freshness.LIVE, Freshness.PARTIAL))
        yield follower
    finally:
        await stream.stop()


class Gateway:
    """A gateway in a process of its own, in front of named engines."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Path,
        replicas: Sequence[tuple[str, str]],
        more: Sequence[Mapping[str, object]] = (),
        **settings: object,
    ) -> None:
        """replicas: name and URL. more: replicas with all their settings."""
        config = {
            "listen": {"host": "127.0.0.1", "port": 0, "control_port": 0},
            "replicas": [*({"name": name, "url": url} for name, url in replicas), *map(dict, more)],
            "tokenizer": str(tokenizer),
            "health": {"interval_s": 0.1, "timeout_s": 0.3},
            **settings,
        }
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(config))
        self.process = Process("gateway", trunkline("serve", "--config", str(path), "--json"), folder / "gateway.log")
        self.base = self.control = ""

    def ready(self, *, followed: bool = True) -> Gateway:
        """Wait until it knows all replicas and follows their events; followed: they have some."""
        self.listening()
        wait_for(lambda: self._knows_all(followed), "all replicas to be known", 30)
        return self

    def listening(self) -> Gateway:
        """Wait until it listens."""
        ports = json.loads(self.process.wait_ready(30))
        self.base, self.control = (f"http://127.0.0.1:{ports[name]}" for name in ("data_port", "control_port"))
        return self

    def _knows_all(self, followed: bool) -> bool:
        status = call(f"{self.control}/status").json()
        states = ("live", "partial") if followed else ("cold",)
        live = [rank["freshness"] in states for replica in status["replicas"] for rank in replica["ranks"]]
        return all(live) and all(replica["models"] for replica in status["replicas"]) and bool(status["tokenizer"] == "ready")

    def replica(self, name: str) -> Any:
        """One replica as it is seen."""
        rows = call(f"{self.control}/replicas").json()["replicas"]
        return next(row for row in rows if row["name"] == name)

    def receipt(self) -> Any:
        """The newest receipt."""
        return call(f"{self.control}/receipts?limit=1").json()["receipts"][0]

    def metric(self, name: str, **labels: str) -> float:
        """One sample, or the sum of those with these labels."""
        lines = call(f"{self.control}/metrics").body.decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        rows = [line for line in lines if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in rows)

    def blocks(self) -> int:
        """Blocks known of all replicas."""
        return int(call(f"{self.control}/index/stats").json()["blocks"])

    def chat(self, text: str, **fields: object) -> Reply:
        """A chat of one message."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}
        return call(f"{self.base}/v1/chat/completions", body)

    def complete(self, prompt: object, **fields: object) -> Reply:
        """A completion."""
        return call(f"{self.base}/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})


class OpenStream:
    """A streamed request whose connection the test holds; leaving the `with` leaves with RST."""

    def __init__(self, base: str, body: dict[str, object], path: str = "/v1/completions") -> None:
        host, _, port = base.removeprefix("http://").partition(":")
        payload = json.dumps({"stream": True, **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        self._socket = socket.create_connection((host, int(port)), timeout=5)
        self._socket.sendall(head.encode() + payload)
        self._file = self._socket.makefile("rb")

    def first_event(self) -> bytes:
        """The first line of data."""
        return next(line for line in self.lines() if line.startswith(b"data: "))

    def lines(self) -> Iterator[bytes]:
        """What comes, line by line, until the end."""
        while line := self._file.readline():
            yield line.rstrip(b"\r\n")

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._file.close()
        self._socket.close()


def ids(count: int, *, first: int = 10) -> list[int]:
    """A prompt of `count` ids that begins like no other with another `first`."""
    return [(first * 7919 + 13 * i) % 250 + 3 for i in range(count)]
