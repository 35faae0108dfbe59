"""One fleet of tiny replicas for all tests that leave it as it was; others start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.tokenize.folder import model_folder
from tests.end_to_end.fleet import Fleet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these share two cores and one fleet: they run one after another, in one worker."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("end_to_end"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def tokenizer_folder() -> Path:
    """The tiny model uses SmolLM2's tokenizer."""
    folder = model_folder("smollm2")
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: run `trunkline model fetch smollm2`")
    return folder


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Iterator[Fleet]:
    """Two tiny replicas and a gateway with policy `cost`."""
    running = Fleet(tmp_path_factory.mktemp("fleet"))
    yield running
    running.close()
