"""Readers beside a writer at full speed never get an answer that no state of the tree has; without the check they would."""

from __future__ import annotations

import os

import pytest

from tests.radix.core.memory_check import check_memory
from tests.radix.core.storm import Storm

SECONDS = float(os.environ.get("TRUNKLINE_STORM_SECONDS", "4"))  # longer by hand
pytestmark = pytest.mark.xdist_group("jit")


@pytest.fixture(scope="module")
def storm() -> Storm:
    return Storm()


def test_no_answer_is_torn(storm: Storm) -> None:
    outcome = storm.blow(3, check=True, seconds=SECONDS)
    assert outcome.torn == outcome.lost == 0
    assert outcome.operations > 1_000
    assert outcome.answers > 1_000
    check_memory(storm.tree)


def test_without_the_sequence_number_answers_are_torn(storm: Storm) -> None:
    """The control: if this passes without torn answers, the test above proves nothing."""
    outcome = storm.blow(3, check=False, seconds=60, until_torn=True)
    assert outcome.torn + outcome.lost > 0
    check_memory(storm.tree)


def test_no_answer_is_torn_beside_an_eviction() -> None:
    storm = Storm(evict_every=200)
    outcome = storm.blow(3, check=True, seconds=SECONDS)
    assert outcome.torn == 0
    assert outcome.evicted > 10_000
    assert outcome.answers > 1_000
    check_memory(storm.tree)


def test_without_the_sequence_number_answers_are_torn_beside_an_eviction() -> None:
    """The control of the test above."""
    storm = Storm(evict_every=200)
    assert storm.blow(3, check=False, seconds=60, until_torn=True).torn > 0
