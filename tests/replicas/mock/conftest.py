"""Processes that tests of the fake engine share: they start together, and each test leaves them calm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicas.mock.tokens import write_tokenizer
from tests.fakes.mock_engines import FAST, Engines, Gateway

ALIASES = {"aliases": {"gpt-5": "m", "nobody": "not-served"}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these share a few processes: they run in one worker."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("mock_engines"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where logs go."""
    return tmp_path_factory.mktemp("mock")


@pytest.fixture(scope="session")
def _started(folder: Path) -> Iterator[dict[str, Engines]]:
    kinds = {
        "vllm": ("--count", "3", "--model", "m", "--num-blocks", "512", *FAST),
        "sglang": ("--dialect", "sglang", "--model", "s", "--num-blocks", "24", *FAST),
        "hybrid": ("--ranks", "2", "--groups", "state,window:64,full", "--model", "h", "--adapter", "tuned", *FAST),
    }
    started = {name: Engines(folder / f"{name}.log", *options) for name, options in kinds.items()}
    yield {name: engines.ready() for name, engines in started.items()}
    for engines in started.values():
        engines.stop()


@pytest.fixture
def vllm(_started: dict[str, Engines]) -> Iterator[Engines]:
    """Three plain engines; the first two stand behind the gateway, which knows no third."""
    yield _started["vllm"]
    _started["vllm"].calm()


@pytest.fixture
def sglang(_started: dict[str, Engines]) -> Iterator[Engines]:
    """One engine with a small pool."""
    yield _started["sglang"]
    _started["sglang"].calm()


@pytest.fixture
def hybrid(_started: dict[str, Engines]) -> Iterator[Engines]:
    """One engine of two ranks with cache groups and an adapter."""
    yield _started["hybrid"]
    _started["hybrid"].calm()


@pytest.fixture(scope="session")
def gateway(_started: dict[str, Engines], folder: Path) -> Iterator[Gateway]:
    """A gateway with policy `cost` in front of two plain engines, the one of SGLang and the hybrid one."""
    write_tokenizer(folder / "tokenizer")
    vllm = _started["vllm"]
    replicas = [("a", vllm.url(0)), ("b", vllm.url(1)), ("s", _started["sglang"].url()), ("h", _started["hybrid"].url())]
    running = Gateway(folder, folder / "tokenizer", replicas, policy="cost", limits={"first_byte_s": 0.5}, models=ALIASES)
    yield running.ready()
    running.process.kill()  # it is not what is tested, and on a busy machine it may still be loading its index
    running.process.stop()
