"""Readers in other processes: never a torn answer, never a crash, and no long wait for a writer that died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from radix.core import jit
from radix.core.compiled import CompiledTree, as_hashes
from radix.core.keyed import KeyedEntries, load_keyed
from radix.core.layout import CHILDREN_TABLE, HEARTBEAT, SEQUENCE, TOTAL
from radix.core.matcher import empty_depths
from radix.core.memory import Memory
from radix.core.naming import root_key
from radix.core.shared_matcher import SharedMatcher
from radix.errors import RadixError
from radix.match import Int32Array
from tests.radix.core.storm_processes import SharedStorm, compiled_reading

pytestmark = pytest.mark.xdist_group("jit")

SECONDS = float(os.environ.get("TRUNKLINE_STORM_SECONDS", "2"))  # longer by hand
ROOT = Path(jit.__file__).parents[2]
GRAIN = 16
KEY = root_key(b"model", GRAIN)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """What the processes need, compiled here, where that may take as long as it takes."""
    SharedStorm()
    compiled_reading()
    load_keyed()


def seen(*words: str) -> dict[str, Any]:
    """What one run of `storm_processes` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.radix.core.storm_processes", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS + 90,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_no_answer_in_another_process_is_torn() -> None:
    outcome = seen("blow", "4", str(SECONDS), "1")
    assert outcome["torn"] == outcome["lost"] == 0
    assert outcome["operations"] > 1_000
    assert outcome["answers"] > 10_000
    assert outcome["given_up"] < outcome["answers"] / 10


def test_without_the_check_another_process_sees_torn_answers() -> None:
    """The control: if this passes without torn answers, the test above proves nothing."""
    outcome = seen("blow", "4", "60", "0")
    assert outcome["torn"] + outcome["lost"] > 0


def test_a_writer_killed_anywhere_leaves_readers_its_last_state_or_nothing() -> None:
    deaths = seen("kill", "12")
    assert deaths["wrong"] == 0
    assert deaths["answered"] + deaths["unknown"] == 12 * 200
    assert deaths["unknown"] == deaths["odd"] * 200


@pytest.fixture
def tree() -> CompiledTree:
    return CompiledTree(shared=True, huge_pages=False)


@pytest.fixture
def matcher(tree: CompiledTree) -> SharedMatcher:
    assert tree.memory.handle is not None
    return SharedMatcher(Memory(handle=tree.memory.handle))


def prompt(blocks: int, seed: int = 1) -> Int32Array:
    """Tokens of some blocks."""
    return np.random.default_rng(seed).integers(0, 128_000, blocks * GRAIN).astype(np.int32)


def depths_of(matcher: SharedMatcher, key: Int32Array, tokens: Int32Array) -> list[int] | None:
    """Tokens on the fastest tier by holder, without the holders that have none at the end; None when there was no answer."""
    out = empty_depths(64)
    if not matcher.depths_by_key(key, GRAIN, tokens, out):
        return None
    found: list[int] = np.trim_zeros(out[:, 0], "b").tolist()
    return found


def test_a_root_is_found_by_its_key_and_gone_with_it(tree: CompiledTree, matcher: SharedMatcher) -> None:
    """The number of a dropped root is given to another one; who follows keys never sees that one's blocks."""
    tokens, ledgers = prompt(3), [tree.open(0), tree.open(1)]
    assert depths_of(matcher, KEY, tokens) == []
    root = tree.root(b"model", GRAIN)
    tree.store(ledgers[0], root, GRAIN, as_hashes([1, 2]), tokens[: 2 * GRAIN])
    assert depths_of(matcher, KEY, tokens) == [32]
    tree.clear(ledgers[0])
    assert tree.drop_root(root)
    other = tree.root(b"other", GRAIN)
    assert other == root
    tree.store(ledgers[1], other, GRAIN, as_hashes([1, 2, 3]), tokens)
    assert depths_of(matcher, KEY, tokens) == []
    assert depths_of(matcher, root_key(b"other", GRAIN), tokens) == [0, 48]


def test_a_reader_elsewhere_notices_that_nodes_grew_wider(tree: CompiledTree, matcher: SharedMatcher) -> None:
    root = tree.root(b"model", GRAIN)
    tree.store(tree.open(0), root, GRAIN, as_hashes([1]), prompt(1))
    tree.store(tree.open(70, 2), root, GRAIN, as_hashes([1]), prompt(1))
    out = empty_depths(71)
    assert matcher.depths_by_key(KEY, GRAIN, prompt(1), out)
    assert (out[0].tolist(), out[70].tolist()) == ([16, 16, 16, 16], [0, 0, 16, 16])


def test_a_writer_that_died_in_a_change_costs_one_wait(
    tree: CompiledTree, matcher: SharedMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree.root(b"model", GRAIN)
    tree.store(tree.open(0), root, GRAIN, as_hashes([1]), prompt(1))
    header = tree.memory.words(0, 64)
    header[SEQUENCE >> 3] += 1
    ask = Mock(side_effect=matcher._keyed.depths)
    monkeypatch.setattr(matcher, "_keyed", KeyedEntries(depths=ask))
    assert [depths_of(matcher, KEY, prompt(1)) for _ in range(100)] == [None] * 100
    assert (ask.call_count, matcher.gave_up) == (1, 100)
    header[SEQUENCE >> 3] += 1  # it was only slow
    assert depths_of(matcher, KEY, prompt(1)) == [16]


def test_a_reader_is_told_before_an_outgrown_table_goes(tree: CompiledTree) -> None:
    """The old child table is given back: a reader that is in it must not pass its check."""
    root, ledger = tree.root(b"model", GRAIN), tree.open(0)
    header = tree.memory.words(0, 64)
    told: dict[bool, set[int]] = {False: set(), True: set()}  # by whether the table grew
    for number in range(200):
        table, sequence = int(header[CHILDREN_TABLE >> 3]), int(header[SEQUENCE >> 3])
        tree.store(ledger, root, GRAIN, as_hashes([number + 1]), prompt(1, number))
        told[int(header[CHILDREN_TABLE >> 3]) != table].add(int(header[SEQUENCE >> 3]) - sequence)
    (usual,), (grown,) = told[False], told[True]
    assert grown == usual + 2


def test_what_a_reader_elsewhere_matches_counts_as_used(tree: CompiledTree, matcher: SharedMatcher) -> None:
    """Over the byte budget the least recently used goes, whoever used it."""
    root, ledger = tree.root(b"model", GRAIN), tree.open(0)
    for number in range(64):
        tree.store(ledger, root, GRAIN, as_hashes([number + 1]), prompt(1, number))
    assert depths_of(matcher, KEY, prompt(1, 0)) == [16]
    tree.evict(tree.bytes_used * 3 // 4)
    assert depths_of(matcher, KEY, prompt(1, 1)) == []
    assert depths_of(matcher, KEY, prompt(1, 0)) == [16]


def test_the_writer_says_when_it_last_lived(tree: CompiledTree, matcher: SharedMatcher) -> None:
    assert matcher.written_at_ns == 0
    tree.memory.words(HEARTBEAT, 1)[0] = time.monotonic_ns()
    assert 0 <= time.monotonic_ns() - matcher.written_at_ns < 10**9


def test_a_reader_cannot_write(matcher: SharedMatcher) -> None:
    with pytest.raises(ValueError, match="read-only"):
        matcher._memory.words(0, 1)[0] = 1


def test_nobody_can_cut_shared_memory_off_under_a_reader(tree: CompiledTree) -> None:
    """Touching a page behind the end of a file ends a process with SIGBUS."""
    assert tree.memory.handle is not None
    with pytest.raises(PermissionError):
        os.ftruncate(tree.memory.handle, TOTAL // 2)


def test_a_file_that_is_too_short_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "short").open("w+b") as file, pytest.raises(RadixError, match="no memory of an index"):
        Memory(handle=file.fileno())


def test_memory_of_something_else_is_not_read() -> None:
    memory = Memory(shared=True, huge_pages=False)
    assert memory.handle is not None
    with pytest.raises(RadixError, match="holds no tree"):
        SharedMatcher(Memory(handle=memory.handle))


def test_shared_memory_may_outgrow_dev_shm() -> None:
    """Containers give /dev/shm 64 MiB; a named file that outgrows it ends the process with SIGBUS."""
    program = (
        "from radix.core.memory import Memory\n"
        "memory = Memory(shared=True, huge_pages=False)\n"
        "memory.words(1 << 30, 96 << 17)[:] = 1\n"
    )
    limited = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = f'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "{sys.executable}" -c "$0"'
    probe = subprocess.run([*limited, "mount -t tmpfs -o size=64m tmpfs /dev/shm"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespaces here: {probe.stderr.strip()}")
    done = subprocess.run([*limited, script, program], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
