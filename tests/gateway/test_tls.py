"""Certificates from files: what can not be used is named, what changes is taken up, what is broken changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from gateway import tls
from gateway.check import check_settings
from gateway.config import ListenTls, ReplicaTls, Settings, parse_replica, settings_from
from gateway.errors import ConfigError
from gateway.fleet import Address
from gateway.tls import Certificates, merged
from tests.fakes.certificates import Authority, Pair, has_openssl
from tests.fakes.client import RawClient, get
from tests.fakes.dataplane import running
from tests.fakes.placer import FakePlacer

pytestmark = pytest.mark.skipif(not has_openssl(), reason="needs openssl")
HTTPS = Address.parse("https://engine:1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture
def live(authority: Authority, tmp_path: Path) -> Pair:
    """A pair that a test may overwrite."""
    pair = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    authority.issue("first").copy_to(pair)
    return pair


async def name_shown(port: int, trusted: ssl.SSLContext) -> tuple[str, RawClient]:
    """The common name of the certificate on a new connection, which stays open."""
    client = RawClient(port, tls=trusted)
    await client.__aenter__()
    subject: Any = client.writer.get_extra_info("peercert")["subject"]
    return str(dict(pair[0] for pair in subject)["commonName"]), client


async def test_a_new_pair_is_shown_to_new_connections_and_open_ones_go_on(authority: Authority, live: Pair) -> None:
    certificates = Certificates()
    context = certificates.server(ListenTls(str(live.cert), str(live.key)), "listen.tls")
    async with running(FakePlacer([]), tls=context) as it:
        name, old = await name_shown(it.port, authority.trusted())
        assert name == "first"
        certificates.look()
        authority.issue("second", "DNS:localhost").copy_to(live)
        certificates.look()
        name, new = await name_shown(it.port, authority.trusted())
        assert name == "second"
        for client in (old, new):
            await client.send(get(b"/health"))
            assert (await client.answer()).status == 200
            client.writer.close()
        await it.quiet(20)


async def test_a_bad_pair_is_told_once_and_the_last_good_one_stays(
    authority: Authority, live: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates()
    context = certificates.server(ListenTls(str(live.cert), str(live.key)), "listen.tls")
    good = context.current
    second = authority.issue("second")
    live.cert.write_bytes(second.cert.read_bytes())  # its key has not come yet
    for _ in range(3):
        certificates.look()
    assert context.current is good
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "listen.tls.cert, listen.tls.key" in caplog.text
    live.key.write_bytes(b"no key")
    certificates.look()
    live.cert.unlink()
    certificates.look()
    assert context.current is good
    assert len(caplog.records) == 3
    second.copy_to(live)
    with caplog.at_level(logging.INFO):
        certificates.look()
    assert context.current is not good
    assert caplog.records[-1].levelno == logging.INFO


async def test_files_are_watched_also_behind_a_link(
    authority: Authority, live: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mounted secrets change: a link to a folder is moved, and sizes and names stay."""
    monkeypatch.setattr(tls, "_LOOK_S", 0.01)
    for number in (1, 2):
        folder = tmp_path / f"v{number}"
        folder.mkdir()
        live.copy_to(Pair(folder / "tls.crt", folder / "tls.key"))
        for file in folder.iterdir():
            os.utime(file, (1_000_000_000, 1_000_000_000))
    link = tmp_path / "current"
    link.symlink_to("v1")
    certificates = Certificates()
    context = certificates.server(ListenTls(str(link / "tls.crt"), str(link / "tls.key")), "listen.tls")
    first = context.current
    task = asyncio.create_task(certificates.keep())
    moved = tmp_path / "next"
    moved.symlink_to("v2")
    moved.rename(link)
    async with asyncio.timeout(20):
        while context.current is first:
            await asyncio.sleep(0.005)
    task.cancel()


def test_what_can_not_be_used_is_named(authority: Authority, live: Pair, tmp_path: Path) -> None:
    def complaint(**values: object) -> str:
        listen = {"cert": str(live.cert), "key": str(live.key), **values}
        with pytest.raises(ConfigError) as caught:
            check_settings(settings_from({"replicas": [{"url": "http://a:1"}], "listen": {"tls": listen}}, source="t"))
        return str(caught.value)

    missing, junk = str(tmp_path / "missing.pem"), tmp_path / "junk.pem"
    junk.write_text("junk")
    assert complaint(cert=missing) == f"listen.tls.cert: cannot read {missing!r}: No such file or directory"
    assert complaint(key=missing).startswith("listen.tls.key: cannot read")
    assert complaint(client_ca=missing).startswith("listen.tls.client_ca: cannot read")
    assert complaint(client_ca=str(junk)).startswith(f"listen.tls.client_ca: no certificates in {str(junk)!r}")
    assert "key values mismatch" in complaint(key=str(authority.pair.key)).lower().replace("_", " ")
    assert complaint(cert=str(tmp_path)).startswith("listen.tls.cert: cannot read")
    assert "junk" not in complaint(cert=str(junk)).replace(str(junk), "")


def test_a_key_that_wants_a_password_is_an_error_and_not_a_question(live: Pair, tmp_path: Path) -> None:
    import subprocess

    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(live.key), "-aes256", "-passout", "pass:geheim", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="encrypted"):
        Certificates().server(ListenTls(str(live.cert), str(locked)), "listen.tls")


def test_settings_of_replicas_are_checked_too(live: Pair, tmp_path: Path) -> None:
    def complaint(raw: dict[str, object]) -> str:
        with pytest.raises(ConfigError) as caught:
            check_settings(settings_from(raw, source="t"))
        return str(caught.value)

    missing = str(tmp_path / "missing.pem")
    https = {"url": "https://a:1"}
    assert complaint({"replicas": [https], "replica_tls": {"ca": missing}}).startswith("replica_tls.ca: cannot read")
    assert complaint({"replicas": [{**https, "tls": {"cert": missing}}]}).startswith("replicas[0].tls.cert: cannot read")
    assert complaint({"replicas": [{**https, "tls": {"key": missing}}]}).startswith("replicas[0].tls.key:")
    text = complaint({"replicas": [{"url": "http://a:1", "tls": {"verify": False}}]})
    assert text == "replicas[0]: tls: the url is not https://, got 'http://a:1'"
    wrong: dict[str, object] = {"cert": "x", "min_version": "1.1"}
    with pytest.raises(ConfigError, match=r"listen\.tls\.min_version: must be one of 1\.2, 1\.3, got '1\.1'"):
        settings_from({"listen": {"tls": wrong}}, source="t")


def test_a_replicas_settings_go_before_those_of_all() -> None:
    default = ReplicaTls(ca="all.pem", cert="c.pem", key="k.pem", verify=False)
    assert merged(None, None) == ReplicaTls()
    assert merged(ReplicaTls(server_name="n"), default) == ReplicaTls("all.pem", "c.pem", "k.pem", "n", False)
    assert merged(ReplicaTls(cert="own.pem", verify=True), default) == ReplicaTls("all.pem", "own.pem", None, None, True)


def test_replicas_with_the_same_settings_share_a_context_and_have_their_own_names() -> None:
    certificates = Certificates()
    first = certificates.engine(None, None, HTTPS)
    second = certificates.engine(ReplicaTls(server_name="other"), None, Address.parse("https://10.0.0.1:8000"))
    third = certificates.engine(ReplicaTls(verify=False), None, HTTPS)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.context is second.context is not third.context
    assert (first.server_name, second.server_name) == ("engine", "other")
    assert certificates.engine(ReplicaTls(verify=False), None, Address.parse("http://engine:1")) is None


def test_a_replica_on_the_command_line_may_have_tls() -> None:
    given = parse_replica("https://a:1,name=x,tls.ca=/ca.pem,tls.verify=false,tls.server_name=b")
    assert given.tls == ReplicaTls(ca="/ca.pem", verify=False, server_name="b")
    with pytest.raises(ConfigError, match=r"tls\.nothing|nothing"):
        parse_replica("https://a:1,tls.nothing=1")


def test_files_are_a_reason_to_heed_a_hangup() -> None:
    assert not tls.uses_files(Settings())
    assert tls.uses_files(settings_from({"listen": {"control_tls": {"cert": "c"}}}, source="t"))
    assert tls.uses_files(settings_from({"replicas": [{"url": "https://a", "tls": {}}]}, source="t"))
