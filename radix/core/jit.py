"""How functions of this room are compiled, and where the machine code is kept.

A change in a called file does not invalidate the cached code of its callers, so the folder is named by a digest of all sources
of the room together with the versions of Numba and Python. Only entry points are cached; each carries what it calls.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as host
import numba
from numba.core import config as _untyped_config

Function = TypeVar("Function", bound=Callable[..., Any])

_config: Any = _untyped_config  # its attributes are made at run time


def inner(function: Function) -> Function:
    """A function that only compiled code calls."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def default_cache() -> Path:
    """$TRUNKLINE_CACHE/jit, else ~/.cache/trunkline/jit."""
    configured = os.environ.get("TRUNKLINE_CACHE")
    return (Path(configured) if configured else Path.home() / ".cache" / "trunkline") / "jit"


@cache
def version() -> str:
    """Changes whenever cached code may no longer fit."""
    digest = blake2b(f"{numba.__version__} {platform.python_version()}".encode(), digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether everything was compiled into this cache before, for this CPU."""
    return _mark(folder).exists()


def mark_whole(folder: Path) -> None:
    """Say so."""
    _mark(folder).touch()


def _mark(folder: Path) -> Path:
    cpu = f"{_config.CPU_NAME or host.get_host_cpu_name()} {_config.CPU_FEATURES or host.get_host_cpu_features().flatten()}"
    return folder / version() / f"whole-{blake2b(cpu.encode(), digest_size=8).hexdigest()}"


def entry(function: Function, signature: Any, folder: Path, *, nogil: bool) -> Function:
    """Compile one entry point for exactly one signature, or take it from the cache."""
    dispatcher = numba.njit(nogil=nogil, error_model="numpy")(function)
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder / version())  # read once, while caching is switched on
    try:
        dispatcher.enable_caching()
    finally:
        _config.CACHE_DIR = before
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast(Function, dispatcher)
