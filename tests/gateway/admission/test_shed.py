"""Whom a process that can not keep up refuses."""

from __future__ import annotations

from gateway.admission.shed import URGENT_PRIORITY, Shedder


def test_the_later_the_loop_the_more_urgent_a_request_has_to_be() -> None:
    shedder = Shedder(0.5)
    seen = []
    for steady_s in (0.0, 0.4, 0.5, 0.9, 1.0, 2.0):
        shedder.look(steady_s, steady_s)
        seen.append(shedder.least)
    assert seen == [None, None, 0, 0, 1, URGENT_PRIORITY]


def test_it_ends_once_the_loop_is_clearly_calm() -> None:
    shedder = Shedder(0.5)
    assert shedder.look(0.6, 0.6)
    assert not shedder.look(0.3, 0.3)
    assert shedder.least == 0
    assert shedder.look(0.2, 0.2)
    assert shedder.least is None


def test_a_single_stall_sheds_nobody_and_it_can_be_switched_off() -> None:
    shedder = Shedder(0.5)
    assert not shedder.look(0.0, 9.0)
    off = Shedder(None)
    assert not off.look(9.0, 9.0)
    assert off.least is None
