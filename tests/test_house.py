"""The house keeps its order: who imports whom, what stays free of torch, how long files get, whose names are whose."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house import (
    ROOMS,
    ROOT,
    TORCH_FREE_MODULES,
    TORCH_FREE_PACKAGES,
    TORCH_FREE_ROOMS,
    below,
    broken_rules,
    modules,
    root_errors,
    tracked_files,
)

MAX_LINES = 400
MAIN = "__main__"


def python_files() -> list[Path]:
    """All Python files of the repository."""
    return [path for path in tracked_files() if path.suffix == ".py"]


def shown(path: Path) -> str:
    """A path as a reader of the failure wants it."""
    return path.relative_to(ROOT).as_posix()


def run_python(program: str, *args: str) -> Any:
    """Run a program in a fresh interpreter in the project root; what it prints is JSON."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    found = [line for name, path in modules(room).items() for line in broken_rules(name, path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("radix.index", "import events"),
        ("radix.index", "from gateway.errors import ConfigError"),
        ("events.apply", "def f():\n    from gateway import fleet"),
        ("gateway.fleet", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("gateway.fleet", "from replicas.blocks import Pool"),
        ("gateway.fleet", "import importlib"),
        ("gateway.fleet", "from importlib import import_module"),
        ("gateway.body", "import tokenizers"),
        ("replicas.server", "from events.cursor import Cursor"),
        ("replicas.server", "from radix import Index"),
        ("replicas.server", "from radix.match import Match"),
        ("replicas.server", "from gateway.fleet import Fleet"),
        ("simulations.run", "import gateway.serve"),
        ("simulations.run", "from replicas import server"),
        ("kernels.decode", "from replicas.errors import ReplicaError"),
        ("radix.plain", "from .errors import RadixError"),
    ],
)
def test_the_reader_sees_each_kind_of_breach(module: str, source: str) -> None:
    assert len(broken_rules(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("replicas.server", "from events.publish import Publisher\nfrom radix.match import Int32Array"),
        ("replicas.runner", "import torch\nfrom gateway.tokenize import template"),
        ("simulations.run", "from gateway.choose.types import Policy\nfrom replicas.schedule import Schedule"),
        ("gateway.cli", "import importlib"),
        ("gateway.cli", "from importlib.metadata import version"),
    ],
)
def test_the_reader_lets_pass_what_the_table_allows(module: str, source: str) -> None:
    assert broken_rules(module, source) == []


def test_the_table_of_contributing_is_this_table() -> None:
    row = re.compile(r"^\| `(\w+)/` \| .* \| (.*) \|$", re.MULTILINE)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    written = {room: set(re.findall(r"`([\w.]+)`", may)) for room, may in row.findall(text)}
    assert written == {name: set(room.may) for name, room in ROOMS.items()}


IMPORT_EACH = """
import importlib, json, logging, os, signal, sys, threading

def state():
    handlers = [name for name, logger in logging.root.manager.loggerDict.items()
                if name.split(".")[0] in OURS and getattr(logger, "handlers", [])]
    return {
        "log handlers": handlers + ["root"] * len(logging.root.handlers),
        "log level": logging.root.level,
        "threads": threading.active_count(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    }

OURS = ("gateway", "radix", "events", "replicas", "kernels", "simulations")
before, found, loaded = state(), [], set()
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        found.append(f"{name} can not be imported: {error!r}")
        continue
    after = state()
    found += [f"{name} changes {key}" for key in before if after[key] != before[key]]
    heavy = {library for library in sys.argv[1].split(",") if library in sys.modules}
    found += [f"{name} loads {library}" for library in heavy - loaded]
    loaded |= heavy
    before = after
print(json.dumps(found))
"""


def test_what_must_be_free_of_torch_loads_without_it_and_does_nothing() -> None:
    names = [name for name in modules(*TORCH_FREE_ROOMS) if not name.endswith(MAIN)]
    names += [name for name in modules("replicas") if any(below(name, package) for package in TORCH_FREE_PACKAGES)]
    assert run_python(IMPORT_EACH, "torch,triton,transformers", *TORCH_FREE_MODULES, *names) == []


def test_the_rooms_with_torch_do_nothing_on_import_either() -> None:
    names = [name for name in modules("kernels", "replicas") if not name.endswith(MAIN)]
    torch_first = IMPORT_EACH.replace("before, found", "import torch, triton\nbefore, found", 1)
    assert run_python(torch_first, "transformers", *names) == []


def test_no_installed_distribution_ships_a_package_of_our_name() -> None:
    owners = importlib.metadata.packages_distributions()
    clashes = {name: set(owners.get(name, [])) - {"trunkline"} for name in [*ROOMS, "tests"]}
    assert {name: who for name, who in clashes.items() if who} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_name_leads_to_our_folder(room: str) -> None:
    spec = importlib.util.find_spec(room)
    assert spec is not None
    assert spec.origin == str(ROOT / room / "__init__.py")


def test_transformers_loads_a_model_beside_our_kernels() -> None:
    """A Hugging Face package is called `kernels` too, and transformers looks for it."""
    program = """
import json, sys
from transformers import LlamaConfig, LlamaForCausalLM
size = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(**size))
import kernels
print(json.dumps([type(model).__name__, kernels.__file__]))
"""
    assert run_python(program) == ["LlamaForCausalLM", str(ROOT / "kernels" / "__init__.py")]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_one_root_error(room: str) -> None:
    roots = {f"{module}.{name}": name for module, path in modules(room).items() for name in root_errors(path.read_text("utf-8"))}
    assert list(roots.values()) == [ROOMS[room].error], sorted(roots)


def test_root_errors_are_told_from_their_kinds() -> None:
    source = "class A(Exception): ...\nclass B(A): ...\nclass C(A, ValueError): ...\nclass D(int): ...\nclass E(ValueError): ..."
    assert root_errors(source) == ["A", "E"]


def test_files_stay_short() -> None:
    lines = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: n for name, n in lines.items() if n > MAX_LINES and not name.startswith("tests/")} == {}


def test_every_module_says_what_it_is() -> None:
    found = []
    for path in python_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and not (ast.get_docstring(tree) or "").strip():
            found.append(f"{shown(path)} has no docstring")
        code = [node for node in tree.body if not isinstance(node, ast.Expr)]
        if code and not (isinstance(code[0], ast.ImportFrom) and code[0].module == "__future__"):
            found.append(f"{shown(path)} does not begin with `from __future__ import annotations`")
    assert found == []


def test_packages_carry_their_type_marker() -> None:
    assert [room for room in ROOMS if not (ROOT / room / "py.typed").is_file()] == []


@pytest.mark.parametrize(
    ("what", "pattern", "example"),
    [
        ("a path of one machine", r"(?<![\w.$}])/(work|root|home|mnt|Users)/\w|(?<![\w.$}])/tmp/\w", "see /ro" + "ot/x"),
        ("a note to come back", r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bXX" + r"X\b", "# TO" + "DO: later"),
    ],
)
def test_no_file_carries(what: str, pattern: str, example: str) -> None:
    assert re.search(pattern, example)
    found = []
    for path in tracked_files():
        if path.is_relative_to(ROOT / "tests" / "data"):  # recorded texts say what they like
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{shown(path)}:{i}: {what}: {line.strip()[:100]}"
            for i, line in enumerate(text.splitlines(), start=1)
            if re.search(pattern, line)
        ]
    assert found == []


def test_the_changelog_has_an_entry_for_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
