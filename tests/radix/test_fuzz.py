"""200,000 random operations on both trees against dictionaries, and the proof that a difference would be seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from radix.changes import Applied
from radix.holder import Holder
from radix.writer import Writer
from tests.radix.fuzz import live, lives
from tests.radix.trees import KINDS

OPERATIONS = 200_000
PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_lives_equal_dictionaries(part: int) -> None:
    """FC-15: whatever happens in whatever order, every answer is that of plain dictionaries, and nothing is left at the end."""
    done = lives(OPERATIONS // PARTS, count(1_000_000 * part), KINDS[part % len(KINDS)])
    assert done.operations >= OPERATIONS // PARTS
    assert done.matches > done.lives * 10
    assert done.encoded > done.operations // 4
    if KINDS[part % len(KINDS)] == "flat":
        assert done.scanned > done.operations // 20


def test_a_difference_is_seen_and_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that forgets its last hash now and then."""
    remove, calls = Writer.remove, count()

    def forgetful(self: Writer, owner: Holder, tier: int, group: int, hashes: Sequence[int], applied: Applied) -> None:
        names = hashes[:-1] if next(calls) % 50 == 49 else hashes
        remove(self, owner, tier, group, names, applied)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "remove", forgetful)
    with pytest.raises(AssertionError) as raised:
        lives(100_000, count(7))
    (note,) = raised.value.__notes__
    seed = int(note.rsplit(" ", 1)[1])
    monkeypatch.setattr(Writer, "remove", remove)
    assert live(seed).operations > 0
