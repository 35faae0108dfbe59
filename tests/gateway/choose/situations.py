"""Random requests on random fleets, for the properties of policies."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from events.types import Freshness
from gateway.choose.types import FleetView, RequestView
from radix.match import TIERS, Match
from tests.gateway.choose.fleets import SPACE, fleet_of

seconds = st.one_of(st.just(0.0), st.floats(0, 5, allow_subnormal=False))


@st.composite
def situations(draw: st.DrawFn) -> tuple[RequestView, FleetView]:
    """A request and a fleet of one to six holders in any state, at least one eligible."""
    count = draw(st.integers(1, 6))
    tokens = draw(st.integers(0, 3_000))

    def listed(elements: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(elements, min_size=count, max_size=count))

    fleet = fleet_of(count)
    fleet.wait_s = listed(seconds)  # type: ignore[assignment]
    fleet.drag_s = listed(seconds)  # type: ignore[assignment]
    fleet.prefill_rate = listed(st.sampled_from([200.0, 2_000.0, 2_050.0, 20_000.0]))  # type: ignore[assignment]
    fleet.trust = listed(st.floats(0.1, 1))  # type: ignore[assignment]
    fleet.in_flight = listed(st.integers(0, 3))  # type: ignore[assignment]
    fleet.queued_tokens = listed(st.integers(0, 2))  # type: ignore[assignment]
    fleet.freshness = listed(st.sampled_from(list(Freshness)))  # type: ignore[assignment]
    fleet.eligible = listed(st.booleans())  # type: ignore[assignment]
    fleet.eligible[draw(st.integers(0, count - 1))] = True
    depth = np.zeros((count, TIERS), np.int32)
    if tokens:
        depth[:] = np.array(listed(st.integers(0, tokens // 16)), np.int32)[:, None] * 16
    guessed = np.array(listed(st.booleans()), np.bool_)
    request = RequestView(tokens, SPACE, Match(depth, guessed), prefix_hash=draw(st.integers(0, 2**64 - 1)))
    return request, fleet
