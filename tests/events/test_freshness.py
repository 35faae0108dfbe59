"""Freshness by itself: what the stream says, and silence over it."""

from __future__ import annotations

from events.freshness import Trust
from events.types import Freshness


def test_silence_needs_answers_that_owe_events() -> None:
    """FC-05: idle for ever is fine; owing for the grace time is not."""
    trust = Trust(grace_s=60)
    trust.set(Freshness.LIVE)
    assert not trust.answered(100.0)
    assert not trust.answered(159.9)
    assert trust.answered(160.0)
    assert trust.state is Freshness.SILENT
    assert not trust.answered(500.0), "told once"


def test_an_event_ends_silence_and_what_is_owed() -> None:
    """FC-05: the state below comes back."""
    trust = Trust(grace_s=60)
    trust.set(Freshness.PARTIAL)
    trust.answered(0.0)
    trust.answered(60.0)
    assert trust.heard()
    assert trust.state is Freshness.PARTIAL
    assert not trust.heard()
    assert not trust.answered(119.0)
    assert not trust.answered(178.0)


def test_changes_below_silence_do_not_show() -> None:
    trust = Trust(grace_s=0)
    assert trust.state is Freshness.COLD
    assert trust.set(Freshness.LIVE)
    assert not trust.set(Freshness.LIVE)
    trust.answered(0.0)
    assert not trust.set(Freshness.GAP)
    assert (trust.state, trust.base) == (Freshness.SILENT, Freshness.GAP)
