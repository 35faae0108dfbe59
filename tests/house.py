"""The rules of the house as data, and the reading of sources they need; `test_house.py` holds them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Room:
    """One top-level package.

    may: modules of other rooms it may import, each with all below it. why: the reason, for who wants to add one.
    error: its one class that derives straight from a built-in exception.
    """

    may: tuple[str, ...]
    why: str
    error: str


ROOMS = {
    "kernels": Room((), "kernels are tensors in, tensors out", "KernelError"),
    "radix": Room((), "the index knows tokens and holders, and nobody's wire format", "RadixError"),
    "events": Room(("radix",), "events are applied to the index", "EventsError"),
    "gateway": Room(
        ("radix", "events"), "the index decides, the bus feeds it; engines are on the far side of HTTP", "GatewayError"
    ),
    "replicas": Room(
        (
            "kernels",
            "events.publish",
            "events.encode",
            "events.types",
            "radix.changes",
            "radix.match.Int32Array",
            "gateway.tokenize",
            "gateway.errors.NoTokens",
        ),
        "an engine sends events, so it knows the sending side and the words it sends, and nothing that listens; template and "
        "tokens (and the error they raise) are the gateway's, or prefixes would not match",
        "ReplicaError",
    ),
    "simulations": Room(
        ("radix", "events.types", "gateway.choose", "replicas.blocks", "replicas.schedule"),
        "the simulator replays the real chooser over the real bookkeeping; sockets and models stay out",
        "SimulationError",
    ),
}

# library -> where it may be imported; everywhere else it would make images heavy or move text handling out of its place
LIBRARIES = {
    "torch": ("kernels", "replicas"),
    "triton": ("kernels", "replicas"),
    "safetensors": ("replicas",),
    "gguf": ("replicas",),
    "tokenizers": ("gateway.tokenize", "replicas"),
    "fastokens": ("gateway.tokenize",),
    "transformers": (),
}

# Modules of rooms with torch that must load without it: the simulator uses them, or they need no model.
TORCH_FREE_MODULES = ("replicas", "replicas.blocks", "replicas.schedule")
TORCH_FREE_PACKAGES = ("replicas.mock",)  # the fake engine has no model
TORCH_FREE_ROOMS = ("gateway", "radix", "events", "simulations")

# The one place that reaches rooms by name: the command.
DISPATCHER = "gateway.cli"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `from a import b` is a.b, and `a` is its module."""

    line: int
    name: str
    module: str


def imports(source: str) -> Iterator[Import]:
    """All imports of a file, also those inside functions and under TYPE_CHECKING; a relative one has a leading dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(node.lineno, f"{module}.{alias.name}", module)


def below(name: str, place: str) -> bool:
    """Whether a dotted name is `place` or inside it."""
    return name == place or name.startswith(place + ".")


def broken_rules(module: str, source: str) -> list[str]:
    """What the imports of `module` break, one line each; empty when they keep to the table."""
    room = module.partition(".")[0]
    found = []
    for item in imports(source):
        top = item.name.partition(".")[0]
        if item.name.startswith("."):
            found.append(f"{module}:{item.line} imports {item.name}: imports are absolute")
        elif top in ROOMS and top != room and not any(below(item.name, place) for place in ROOMS[room].may):
            found.append(f"{module}:{item.line} imports {item.name}: {room} may import {', '.join(ROOMS[room].may) or 'no room'}")
        elif top in LIBRARIES and not any(below(module, place) for place in LIBRARIES[top]):
            found.append(f"{module}:{item.line} imports {item.name}: only {', '.join(LIBRARIES[top]) or 'tests'} may")
        elif item.name in ("importlib", "importlib.import_module") and module != DISPATCHER:
            found.append(f"{module}:{item.line} imports {item.name}: only {DISPATCHER} reaches rooms by name")
    return found


def root_errors(source: str) -> list[str]:
    """Classes of a file whose bases are all built-in and one of them an exception."""
    classes = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
    exceptions = {name for name, value in classes.items() if issubclass(value, BaseException)}
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for bases in [{base.id if isinstance(base, ast.Name) else "" for base in node.bases}]
        if bases & exceptions and bases <= classes.keys()
    ]


def modules(*rooms: str) -> dict[str, Path]:
    """Dotted name -> file of every module in these rooms."""
    found = {}
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def tracked_files() -> list[Path]:
    """Files of the repository: everything `.gitignore` does not name."""
    patterns = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split())]
    return sorted(_walk(ROOT, patterns))


def _walk(folder: Path, patterns: list[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        relative = path.relative_to(ROOT).as_posix()
        if any(fnmatch(path.name, pattern) or fnmatch(relative, pattern) for pattern in patterns):
            continue
        if path.is_dir():
            yield from _walk(path, patterns)
        elif path.is_file() and not path.is_symlink():
            yield path
