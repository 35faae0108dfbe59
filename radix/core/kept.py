"""Compiled functions as files, found by what they are made of and not by where, or when, their source was written.

So a cache may be read-only, be copied, and serve any number of checkouts. Each file begins with a digest of the rest: one that
was cut off or cannot be read is the same as none.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from inspect import getfile
from pathlib import Path
from typing import Any

from numba.core import compiler as _untyped_compiler
from numba.core import serialize as _untyped_serialize

_DIGEST_BYTES = 16

_compiler: Any = _untyped_compiler
_serialize: Any = _untyped_serialize


class Kept:
    """What Numba asks of a cache, for one function."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        """folder: of one version and one kind of machine."""
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._source = Path(getfile(function)).read_bytes()
        self._folder = folder

    @property
    def cache_path(self) -> str:
        """Where it is."""
        return str(self._folder)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The function as it was compiled for a signature; None when it was not."""
        target.refresh()
        data = intact(self._file(signature))
        return None if data is None else _compiler.CompileResult._rebuild(target, *pickle.loads(data))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep it; raises OSError where that cannot be."""
        data = _serialize.dumps(compiled._reduce())
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(signature), _digest(data) + data)

    def _file(self, signature: Any) -> Path:
        key = _digest(f"{self._name} {signature}".encode() + self._source).hex()
        return self._folder / f"{self._name.rpartition('.')[2]}-{key}.code"


def intact(file: Path) -> bytes | None:
    """What a file was given to keep; None when that is not there."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    return data[_DIGEST_BYTES:] if data[:_DIGEST_BYTES] == _digest(data[_DIGEST_BYTES:]) else None


def write_whole(file: Path, data: bytes) -> None:
    """Write a file at once, for readers beside us."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as made:
        made.write(data)
    Path(made.name).chmod(0o644)  # no secret, and baked by somebody else, maybe, than who reads it
    Path(made.name).replace(file)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
