"""Start and stop of a replica, in order: model, events, engine, HTTP; and back, after open answers had time to finish."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import uvloop
from aiohttp import web

from events.publish import Publisher
from events.types import EventsError
from gateway.errors import NoTokens
from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer
from replicas.engine import Engine, EngineSettings
from replicas.errors import EngineDied, ModelError, ReplicaError
from replicas.fetch import fetch_smollm2
from replicas.machine import machine_memory_bytes
from replicas.server import Identity, Server
from replicas.step import Runner

log = logging.getLogger(__name__)

_LAST_WRITES_S = 5.0  # for answers that are complete but not yet on the wire when the server closes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How a replica is reached and how big it is. Port 0 and `tcp://host:*` take a free port.

    num_blocks: None makes as many blocks as fit `kv_memory_bytes`. drain_s: how long open answers may go on after SIGTERM.
    """

    model_name: str
    host: str = "0.0.0.0"
    port: int = 8000
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    block_tokens: int = 16
    num_blocks: int | None = None
    kv_memory_bytes: int = 1 << 30
    max_batch_tokens: int = 128
    max_running: int = 32
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Ready:
    """Where the replica can be reached now; ports and endpoints as bound."""

    port: int
    events: str | None
    replay: str | None
    num_blocks: int


def load_tokenizer(model: str, progress: Callable[[str], None]) -> Tokenizer:
    """The tokenizer of what stands after `--model`; 'tiny' speaks SmolLM2's, fetched on first use. Raises ModelError."""
    folder = fetch_smollm2(progress) if model in ("smollm2", "tiny") else model_folder(model)
    try:
        return Tokenizer.load(folder)
    except NoTokens as error:
        raise ModelError(f"no tokenizer for model {model!r}: {error}") from error


def block_count(settings: ServeSettings, runner: Runner) -> int:
    """How many KV blocks to make; raises ReplicaError when not even one fits the memory, or all of them do not."""
    block_bytes = runner.kv_bytes_per_token * settings.block_tokens
    if settings.num_blocks is not None:
        if (needed := settings.num_blocks * block_bytes) > (present := machine_memory_bytes()):
            raise ReplicaError(
                f"--num-blocks {settings.num_blocks}: blocks of {settings.block_tokens} tokens need {needed >> 20} MiB in all, "
                f"and this machine has {present >> 20} MiB"
            )
        return settings.num_blocks
    if settings.kv_memory_bytes < block_bytes:
        raise ReplicaError(
            f"--kv-memory {settings.kv_memory_bytes} (bytes) holds no block of --block-size {settings.block_tokens}, "
            f"which takes {block_bytes} bytes"
        )
    return settings.kv_memory_bytes // block_bytes


def serve(settings: ServeSettings, runner: Runner, tokenizer: Tokenizer, announce: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when requests are taken.

    Raises OSError for a taken port, ReplicaError for sizes that do not fit, and EngineDied when the engine ended by itself.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop_runner:
        loop_runner.run(_serve(settings, runner, tokenizer, announce))


async def _serve(settings: ServeSettings, runner: Runner, tokenizer: Tokenizer, announce: Callable[[Ready], None]) -> None:
    listener = _listen(settings.host, settings.port)
    publisher = None
    try:
        if settings.events is not None:
            publisher = _open_publisher(settings.events, settings.replay, settings.topic)
        sizes = EngineSettings(
            num_blocks=block_count(settings, runner),
            block_tokens=settings.block_tokens,
            max_batch_tokens=settings.max_batch_tokens,
            max_running=settings.max_running,
        )
        engine = _make_engine(runner, tokenizer, sizes, publisher)
        ready = Ready(
            listener.getsockname()[1],
            publisher.bound_endpoint if publisher else None,
            publisher.bound_replay if publisher else None,
            sizes.num_blocks,
        )
        await _run(settings, engine, tokenizer, listener, ready, announce)
    finally:
        listener.close()
        if publisher is not None:
            publisher.close()


def _make_engine(runner: Runner, tokenizer: Tokenizer, sizes: EngineSettings, publisher: Publisher | None) -> Engine:
    try:
        return Engine(
            runner,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
            sizes,
            publisher.publish if publisher else None,
        )
    except MemoryError as error:  # below the machine's memory, but above what this process may have
        raise ReplicaError(
            f"no memory for {sizes.num_blocks} KV blocks of {sizes.block_tokens} tokens: lower --num-blocks or --kv-memory"
        ) from error


def _open_publisher(events: str, replay: str | None, topic: str) -> Publisher:
    """Bind the event sockets; raises ReplicaError naming the endpoint. A port `*` is any free one, as port 0 is."""
    try:
        return Publisher(_any_port(events), replay and _any_port(replay), topic=topic)
    except EventsError as error:
        raise ReplicaError(str(error)) from error


def _any_port(endpoint: str) -> str:
    return endpoint[:-1] + "0" if endpoint.endswith(":*") else endpoint


async def _run(
    settings: ServeSettings,
    engine: Engine,
    tokenizer: Tokenizer,
    listener: socket.socket,
    ready: Ready,
    announce: Callable[[Ready], None],
) -> None:
    identity = Identity(
        model=settings.model_name,
        epoch=uuid.uuid4().hex,
        started=int(time.time()),
        events=ready.events,
        replay=ready.replay,
        topic=settings.topic,
    )
    server = Server(engine, tokenizer, identity)
    app_runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        shutdown_timeout=_LAST_WRITES_S,
    )
    await app_runner.setup()
    asked, urged = _stop_signals()
    engine.start()
    try:
        await web.SockSite(app_runner, listener, backlog=1024).start()
        announce(ready)
        await _first_of(asked, engine.died)
        if engine.died.is_set():
            raise EngineDied("the engine died; its last words are in the log")
        await _drain(server, urged, engine.died, settings.drain_s)
    finally:
        await engine.shutdown("the replica is shutting down")
        await app_runner.cleanup()


async def _drain(server: Server, urged: asyncio.Event, died: asyncio.Event, drain_s: float) -> None:
    """Refuse what is new and let open answers finish, until the time is up, a second signal comes or nothing computes them."""
    server.draining = True
    log.info("draining open_requests=%d limit_s=%.0f", server.open_requests, drain_s)
    await _first_of(server.idle, urged, died, timeout_s=drain_s)
    log.info("stopping open_requests=%d", server.open_requests)


async def _first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of them is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _stop_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """(set by the first SIGTERM or SIGINT, set by the second)."""
    asked, urged = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (urged if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return asked, urged


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises OSError for an address that is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
