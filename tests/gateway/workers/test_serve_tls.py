"""Several workers on one TLS port: one certificate, changed in all of them, by a signal or by itself, and nobody is dropped."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority, Pair, has_openssl
from tests.gateway.workers.fleet import LOOPBACK, ROOT, until

pytestmark = [
    pytest.mark.xdist_group("workers"),
    pytest.mark.slow,
    pytest.mark.skipif(not has_openssl(), reason="needs openssl"),
]


class Served:
    """A gateway of two workers with a certificate that can be changed."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ours")
        self.live = Pair(folder / "live.pem", folder / "live.key")
        self.authority.issue("first").copy_to(self.live)
        tls = ["--tls-cert", str(self.live.cert), "--tls-key", str(self.live.key)]
        words = ["serve", "--json", "--workers", "2", "--replica", "http://127.0.0.1:9", *tls, *LOOPBACK]
        self.log = folder / "gateway.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        ready = json.loads(line)
        self.port, self.control_port = ready["data_port"], ready["control_port"]

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return self.authority.trusted().wrap_socket(plain, server_hostname="localhost")

    def name(self) -> str:
        """Whose certificate a new connection shows."""
        with self.connect() as connection:
            subject: Any = connection.getpeercert()
            return str(dict(pair[0] for pair in subject["subject"])["commonName"])

    def names(self) -> set[str]:
        """Of enough new connections to meet both workers."""
        return {self.name() for _ in range(24)}

    def pids(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.control_port}/status", timeout=20) as reply:
            return {row["name"]: row["pid"] for row in json.loads(reply.read())["processes"]}

    def hang_up(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait(30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("tls"))
    yield served
    assert served.stop() == 0


def alive(connection: ssl.SSLSocket) -> bool:
    """A request on this connection is answered."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    return connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_changed_certificate_reaches_all_workers_and_ends_no_connection(served: Served) -> None:
    before = served.pids()
    with served.connect() as kept:
        assert alive(kept)
        assert served.names() == {"first"}
        served.authority.issue("second").copy_to(served.live)
        served.hang_up()
        until(lambda: served.names() == {"second"}, "the new certificate")
        served.live.key.write_text("no key")
        served.hang_up()
        until(lambda: served.log.read_text().count("certificate not changed") >= 2, "both workers to complain")
        assert served.names() == {"second"}
        served.authority.issue("third").copy_to(served.live)
        until(lambda: served.names() == {"third"}, "the workers to look by themselves")
        assert alive(kept)
    assert served.pids() == before
