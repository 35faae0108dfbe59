"""How functions of this room are compiled, and where the machine code is kept.

Numba's own cache goes by the path of a source, wants to write wherever it reads, and does not see that a called file changed. So
code is kept in files of our own (`kept`), in a folder that is named by a digest of all sources of the room together with the
versions of Numba and Python. Only entry points are kept; each carries what it calls.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.registry import cpu_target

from radix.core.kept import Kept, intact, write_whole

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "whole"


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
    """Whether everything was compiled into this cache for this CPU and is still there, so that loading compiles nothing."""
    place = _place(folder)
    try:
        kept = (place / _MARK).read_text().splitlines()
    except OSError:
        return False
    return bool(kept) and all(intact(place / name) is not None for name in kept)


def mark_whole(folder: Path) -> None:
    """Say so."""
    if not is_whole(folder):  # a baked cache may be read-only
        place = _place(folder)
        write_whole(place / _MARK, "\n".join(sorted(file.name for file in place.glob("*.code"))).encode())


def _place(folder: Path) -> Path:
    """Where the code for this machine is."""
    machine = " ".join(cpu_target.target_context.codegen().magic_tuple())
    return folder / version() / blake2b(machine.encode(), digest_size=8).hexdigest()


def entry(function: Function, signature: Any, folder: Path, *, nogil: bool) -> Function:
    """Compile one entry point for exactly one signature, or take it from the cache; raises OSError where it cannot be kept."""
    dispatcher: Any = numba.njit(nogil=nogil, error_model="numpy")(function)
    dispatcher._cache = Kept(function, _place(folder))
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast(Function, dispatcher)
