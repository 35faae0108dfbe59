"""Certificates made for one test run: authorities, servers, clients; all of `openssl`, all of the curve P-256."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    cert: Path
    key: Path

    def copy_to(self, other: Pair) -> None:
        """Write them over another pair, as a rotation does: the certificate, then the key."""
        other.cert.write_bytes(self.cert.read_bytes())
        other.key.write_bytes(self.key.read_bytes())


class Authority:
    """One that signs. Raises FileNotFoundError where there is no `openssl`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._serial = 0
        self.name = name
        self.pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self.pair.key, "-out", self.pair.cert
        )

    def issue(self, name: str, alternatives: str = "DNS:localhost,IP:127.0.0.1", *, days: int = 2) -> Pair:
        """A certificate for those names. days: negative for one that has expired."""
        self._serial += 1
        pair = Pair(self._folder / f"{self.name}-{name}.pem", self._folder / f"{self.name}-{name}.key")
        request = self._folder / f"{self.name}-{name}.csr"
        _openssl("req", "-new", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", pair.key, "-out", request)
        extensions = self._folder / f"{self.name}-{name}.ext"
        extensions.write_text(f"subjectAltName={alternatives}\n")
        signer = ("-CA", self.pair.cert, "-CAkey", self.pair.key, "-set_serial", str(self._serial))
        _openssl("x509", "-req", "-in", request, *signer, "-days", str(days), "-extfile", extensions, "-out", pair.cert)
        return pair

    def trusted(self, shown: Pair | None = None) -> ssl.SSLContext:
        """A client's context that believes this authority alone, and shows a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.pair.cert))
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context

    def serving(self, pair: Pair, *, clients: Authority | None = None) -> ssl.SSLContext:
        """A server's context. clients: who must have signed theirs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        if clients is not None:
            context.load_verify_locations(clients.pair.cert)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def has_openssl() -> bool:
    """Certificates can be made here."""
    return shutil.which("openssl") is not None


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
