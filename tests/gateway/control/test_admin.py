"""Administration: off by default, behind a token, towards allowed networks only."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from gateway.config import ReplicaSettings
from gateway.control.admin import Admin
from gateway.errors import ConfigError
from gateway.fleet import Address

TOKEN = "right-token-8861"
Start = Callable[..., Awaitable[str]]


@pytest.fixture
def added() -> list[tuple[ReplicaSettings, Address]]:
    return []


@pytest.fixture
async def start(added: list[tuple[ReplicaSettings, Address]]) -> AsyncIterator[Start]:
    """Serve the two routes on a real socket; returns the base URL."""
    runners: list[web.AppRunner] = []

    async def add(settings: ReplicaSettings, address: Address) -> str:
        added.append((settings, address))
        return settings.name or address.netloc

    async def remove(name: str) -> bool:
        return name == "known"

    async def run(token: str | None, networks: tuple[str, ...] = ("127.0.0.0/8",)) -> str:
        admin = Admin(token, networks, add=add, remove=remove)
        app = web.Application()
        app.router.add_post("/replicas", admin.add_replica)
        app.router.add_delete("/replicas/{name}", admin.remove_replica)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield run
    for runner in runners:
        await runner.cleanup()


async def _post(base: str, body: object, token: str | None = TOKEN) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with ClientSession() as session, session.post(f"{base}/replicas", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_it_is_off_without_a_token_in_the_environment(start: Start, added: list[object]) -> None:
    """FC-58: admin calls are off by default."""
    base = await start(None)
    status, text = await _post(base, {"url": "http://127.0.0.1:1"})
    assert status == 403
    assert "TRUNKLINE_ADMIN_TOKEN" in text
    assert added == []


@pytest.mark.parametrize("token", [None, "wrong-token-1234", ""])
async def test_it_needs_the_right_token(
    start: Start, added: list[object], token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-58, FC-59: refused, logged, and no piece of either token in the log."""
    base = await start(TOKEN)
    with caplog.at_level(logging.DEBUG):
        status, text = await _post(base, {"url": "http://127.0.0.1:1"}, token)
    assert status == 401
    assert added == []
    for piece in ("right-", "wrong-", "8861", "1234"):
        assert piece not in caplog.text + text


async def test_a_replica_in_an_allowed_network_is_added_at_the_address_its_name_had(
    start: Start, added: list[tuple[object, Address]]
) -> None:
    """FC-58: the name is looked up once; a later answer of the name server changes nothing."""
    base = await start(TOKEN, ("127.0.0.0/8", "::1/128"))
    status, _ = await _post(base, {"url": "http://localhost:8000", "name": "new"})
    assert status == 201
    assert added[0][1].host in ("127.0.0.1", "::1")
    assert added[0][1].port == 8000


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://127.0.0.1:8000", "none of admin_networks"),
        ("http://169.254.169.254/", "none of admin_networks"),
        ("http://[fe80::1]:80", "none of admin_networks"),
        ("file:///etc/passwd", "http(s)"),
        ("http://user:sesame77@10.0.0.1", "credentials"),
        ("http://no-such-name.invalid:1", "cannot look up"),
    ],
)
async def test_everything_outside_the_allowed_networks_is_refused(
    start: Start, added: list[object], url: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-58: link-local, loopback, other schemes, credentials: each refused and logged without the secret."""
    base = await start(TOKEN, ("10.0.0.0/8",))
    status, text = await _post(base, {"url": url})
    assert status == 400
    assert complaint in text
    assert "admin refused" in caplog.text
    assert "sesame77" not in text + caplog.text
    assert added == []


@pytest.mark.parametrize("key", ["events", "replay"])
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.2:1", "tcp://169.254.169.254:80", "ipc:///events", "tcp://bad host:5", "x"])
async def test_events_may_only_come_from_the_host_that_was_judged(
    start: Start, added: list[object], key: str, endpoint: str
) -> None:
    """FC-58: neither side door leads out of the allowed networks."""
    base = await start(TOKEN)
    status, text = await _post(base, {"url": "http://127.0.0.1:8000", key: endpoint})
    assert (status, key in text) == (400, True)
    assert added == []


async def test_events_of_an_added_replica_are_at_the_address_that_was_judged(
    start: Start, added: list[tuple[ReplicaSettings, Address]]
) -> None:
    base = await start(TOKEN, ("127.0.0.0/8", "::1/128"))
    body = {"url": "http://localhost:8000", "events": "tcp://*:5557", "replay": "tcp://localhost:5558"}
    assert (await _post(base, body))[0] == 201
    settings, address = added[0]
    host = f"[{address.host}]" if ":" in address.host else address.host
    assert (settings.events, settings.replay) == (f"tcp://{host}:5557", f"tcp://{host}:5558")


@pytest.mark.parametrize("url", [f"http://{'a' * 70}.example:1", "http://127.0.0.1:8000"])
async def test_odd_names_and_odd_tokens_are_refused_without_a_traceback(start: Start, added: list[object], url: str) -> None:
    base = await start(TOKEN, ("10.0.0.0/8",))
    assert (await _post(base, {"url": url}))[0] == 400
    assert (await _post(base, {"url": url}, "\u00ff"))[0] == 401
    assert added == []


async def test_a_path_can_not_forge_a_log_line(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    base = await start(TOKEN)
    async with ClientSession() as session, session.delete(URL(f"{base}/replicas/x%0aERROR", encoded=True)) as answer:
        assert answer.status == 401
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_unknown_fields_and_names_are_named(start: Start) -> None:
    base = await start(TOKEN)
    status, text = await _post(base, {"url": "http://127.0.0.1:1", "colour": "red"})
    assert (status, "colour" in text) == (400, True)
    async with ClientSession() as session:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with session.delete(f"{base}/replicas/ghost", headers=headers) as answer:
            assert (answer.status, "ghost" in await answer.text()) == (404, True)
        async with session.delete(f"{base}/replicas/known", headers=headers) as answer:
            assert answer.status == 204


def test_a_bad_network_is_refused_at_start() -> None:
    async def never(*args: object) -> str:
        raise AssertionError(args)

    with pytest.raises(ConfigError, match=r"10\.0\.0\.300"):
        Admin(TOKEN, ("10.0.0.300/8",), add=never, remove=never)  # type: ignore[arg-type]
