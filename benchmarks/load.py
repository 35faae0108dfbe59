"""The load generator of the proxy benchmark: closed loops on kept connections, one JSON line at the end.

    python -m benchmarks.load requests --url http://127.0.0.1:8080 --bytes 1024 --pid 4711
    python -m benchmarks.load stream   --url ... --connections 500 --gap-ms 20 --pid 4711
    python -m benchmarks.load latency  --url ... --bytes 32768

With --pid the CPU time of that process over the measured window is divided by the work done in it: unlike rates, that figure
holds on a machine that is not quiet. Bodies share one of 16 system prompts of the given size and end in a unique question.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.processes import cpu_s, rss_mib

_STAMP = re.compile(rb"t=(\d+) ")
_TEXT = (
    "the prefix cache of an engine holds keys and values for tokens that were computed before so a request whose prompt starts "
    "with them can skip that work when it reaches the same replica again and answers sooner than on any other one"
)
_PROMPTS = 16


@dataclass(frozen=True)
class Plan:
    """What to send. prompt_bytes: size of the shared system prompt, about. family: which 16 prompts; seed: which questions."""

    host: str
    port: int
    prompt_bytes: int
    stream: bool
    chunks: int
    gap_ms: int
    seed: int
    family: int

    def requests(self) -> Iterator[bytes]:
        """Endless whole requests."""
        rng = random.Random(self.family)
        vocabulary, prompts = _TEXT.split(), []
        for number in range(_PROMPTS):
            words = [f"Assistant {number}."]
            size = 0
            while size < self.prompt_bytes - 250:
                word = rng.choice(vocabulary)
                words.append(word)
                size += len(word) + 1
            prompts.append(" ".join(words))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        tail = f'"}}],"max_tokens":{self.chunks},"seed":{self.gap_ms},"stream":{"true" if self.stream else "false"}}}'
        fronts = [
            f'{{"model":"mock","messages":[{{"role":"system","content":"{text}"}},{{"role":"user","content":"' for text in prompts
        ]
        rng = random.Random(self.seed)
        for number in itertools.count():
            body = f"{rng.choice(fronts)}Question {self.seed}-{number}: what comes next?{tail}"
            yield f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass
class Tally:
    """What came back in the measured window. delays_us: engine to client, by the stamp in each event."""

    requests: int = 0
    bad: int = 0
    chunks: int = 0
    latencies_us: list[float] = field(default_factory=list)
    delays_us: list[float] = field(default_factory=list)


class Loop(asyncio.Protocol):
    """One connection that asks, waits for the whole answer, and asks again."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        """Send the next request."""
        self.head = b""
        self.body_left = -1  # -1: the head is not whole yet; -2: a chunked body
        self.tail = b""
        self.asked_ns = time.perf_counter_ns()
        self.transport.write(next(self.load.requests))

    def data_received(self, data: bytes) -> None:
        if self.body_left == -1:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self.head[end + 4 :]
            self.head = self.head[:end].lower()
            at = self.head.find(b"content-length:")
            self.body_left = int(self.head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else -2
        if self.body_left >= 0:
            self.body_left -= len(data)
            if self.body_left == 0:
                self.answered()
            return
        self.events(data)
        self.tail = (self.tail + data)[-32:]
        if self.tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            self.answered()

    def events(self, data: bytes) -> None:
        """Count the events; where they are paced, also how long they were under way."""
        tally = self.load.tally
        if not self.load.plan.gap_ms:
            tally.chunks += data.count(b'"t=')
            return
        now = time.monotonic_ns()
        for stamp in _STAMP.findall(data):
            tally.chunks += 1
            tally.delays_us.append((now - int(stamp)) / 1000)

    def answered(self) -> None:
        """Note the whole answer and go on."""
        tally = self.load.tally
        tally.requests += 1
        tally.bad += not self.head.startswith(b"http/1.1 200")
        tally.latencies_us.append((time.perf_counter_ns() - self.asked_ns) / 1000)
        if not self.load.stopping:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.load.stopping:
            self.load.tally.bad += 1  # once per connection: it is not opened again


class Load:
    """Many loops for some seconds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests = plan.requests()
        self.tally = Tally()
        self.stopping = False

    async def run(self, connections: int, warm_s: float, seconds: float, pid: int | None) -> dict[str, Any]:
        """Warm up, measure, report."""
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(lambda: Loop(self), self.plan.host, self.plan.port)
            if self.plan.gap_ms:
                await asyncio.sleep(1.0 / connections)  # spread the streams over a second
        await asyncio.sleep(warm_s)
        self.tally = Tally()
        cpu_before = cpu_s(pid) if pid else 0.0
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - began
        cpu = cpu_s(pid) - cpu_before if pid else 0.0
        tally, self.stopping = self.tally, True
        report: dict[str, Any] = {"requests_per_s": tally.requests / elapsed, "bad": tally.bad}
        report |= _spread("latency", tally.latencies_us)
        if self.plan.stream:
            report |= {"chunks_per_s": tally.chunks / elapsed} | _spread("delay", tally.delays_us)
        if pid:
            report |= {"cpu_share": cpu / elapsed, "rss_mib": rss_mib(pid)}
            report["cpu_us_per_request"] = cpu / tally.requests * 1e6 if tally.requests else None
            if self.plan.stream:
                report["cpu_us_per_chunk"] = cpu / tally.chunks * 1e6 if tally.chunks else None
        return report


def latency(plan: Plan, count: int) -> dict[str, Any]:
    """One request after the other on a blocking socket; the first fifth warms up."""
    requests = plan.requests()
    times_us: list[float] = []
    bad = 0
    with socket.create_connection((plan.host, plan.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = sock.makefile("rb")
        for number in range(count + count // 5):
            request = next(requests)
            began = time.perf_counter_ns()
            sock.sendall(request)
            first = reader.readline()
            length = 0
            while (line := reader.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line[15:])
            reader.read(length)
            if number >= count // 5:
                times_us.append((time.perf_counter_ns() - began) / 1000)
            bad += not first.startswith(b"HTTP/1.1 200")
    return {"bad": bad} | _spread("latency", times_us)


def _spread(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    values.sort()
    return {f"{name}_us_p50": values[len(values) // 2], f"{name}_us_p99": values[len(values) * 99 // 100]}


def main() -> int:
    """Entry point of `python -m benchmarks.load`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("requests", "stream", "latency"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=500, help="requests in latency mode")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--gap-ms", type=int, default=0)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the questions")
    parser.add_argument("--family", type=int, help="of the shared system prompts; default: the seed")
    args = parser.parse_args()
    url = urlsplit(args.url)
    if url.hostname != "127.0.0.1" or url.port is None:
        parser.error("only http://127.0.0.1:PORT is loaded")
    family = args.seed if args.family is None else args.family
    plan = Plan(url.hostname, url.port, args.bytes, args.mode == "stream", args.chunks, args.gap_ms, args.seed, family)
    if args.mode == "latency":
        report = latency(plan, args.count)
    else:
        report = uvloop.run(Load(plan).run(args.connections, args.warm, args.seconds, args.pid))
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
