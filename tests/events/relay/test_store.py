"""The connection itself: TLS, and a cancellation that the client library swallows."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.relay.store import Place, _heeding
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import joined, relaying
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer


async def test_a_task_that_was_cancelled_ends_though_the_client_swallowed_it() -> None:
    """On Python 3.11 `asyncio.wait_for` may return an answer instead of raising."""
    swallowed = asyncio.Event()

    async def answers_all_the_same() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
        return "answer"

    task = asyncio.get_running_loop().create_task(_heeding(answers_all_the_same()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert swallowed.is_set()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of localhost and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not here")
    made = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-out",
        str(made[0]),
        "-keyout",
        str(made[1]),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
async def tls_port(redis: RedisServer, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    """Where the server can be reached by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", redis.port)
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_by_tls_with_an_authority_of_ones_own(tls_port: int, certificate: tuple[Path, Path]) -> None:
    place = Place(f"rediss://localhost:{tls_port}?ssl_ca_certs={certificate[0]}")
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(3))
        await until(lambda: one.blocks == 3)


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tls_port: int, certificate: tuple[Path, Path], redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Place(redis.url), Place(f"rediss://localhost:{tls_port}")
    async with FakePublisher() as engine, relaying(good, engine), joined(good) as one, joined(bad) as other:
        await until(one.is_(Freshness.LIVE))
        await until(lambda: "redis cannot be read" in caplog.text)
        assert other.stream.freshness is Freshness.COLD
