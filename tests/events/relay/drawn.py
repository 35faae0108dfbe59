"""Batches of events that hypothesis draws: a small world of blocks, used well and badly."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from radix.changes import Batch, Cleared, Event, GroupKind, NamespaceHint, Removed, Stored, Tier, as_tokens

SIZE = 2
HINTS = (NamespaceHint(), NamespaceHint("a"), NamespaceHint(None, "s"), NamespaceHint("a", None, (b"\0i",)))
_HASHES = st.integers(1, 12)
_TIERS = st.sampled_from([Tier.DEVICE, Tier.DEVICE, Tier.HOST, Tier.SHARED])
_WITH_TOKENS = st.sampled_from([Tier.DEVICE, Tier.DEVICE, Tier.SHARED])  # the others name blocks only, as offloading engines do


@st.composite
def chains(draw: st.DrawFn) -> Stored:
    """Blocks first..first+count of one of three prompts, as an engine stores them: the same hash always means the same."""
    prompt, first, count = draw(st.integers(0, 2)), draw(st.integers(0, 4)), draw(st.integers(1, 4))
    hashes = tuple(100 * prompt + at + 1 for at in range(first, first + count))
    tokens = [7 * prompt + at // SIZE * (at // SIZE > 1) + at for at in range(first * SIZE, (first + count) * SIZE)]
    parent = 100 * prompt + first if first else None
    hint = HINTS[prompt % 2] if first == 0 else HINTS[0]
    return Stored(hashes, parent, as_tokens(tokens), SIZE, hint, draw(_WITH_TOKENS))


@st.composite
def offloads(draw: st.DrawFn) -> Stored:
    """Blocks by name only."""
    prompt, first, count = draw(st.integers(0, 2)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    hashes = tuple(100 * prompt + at + 1 for at in range(first, first + count))
    return Stored(hashes, None, as_tokens([]), 0, tier=Tier.HOST)


@st.composite
def removals(draw: st.DrawFn) -> Removed:
    """Some blocks of one prompt, known or not."""
    prompt = draw(st.integers(0, 2))
    places = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    return Removed(tuple(100 * prompt + at + 1 for at in places), draw(_TIERS))


@st.composite
def wild_stores(draw: st.DrawFn) -> Stored:
    """Anything that fits the types: what a decoder may hand on."""
    hashes = tuple(draw(st.lists(st.integers(0, 2**64 - 1), max_size=5)))
    size = draw(st.integers(0, 5) | st.integers(0, 2**31 - 1))
    tokens = draw(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300), max_size=20))
    hint = NamespaceHint(
        draw(st.none() | st.text(max_size=5)),
        draw(st.none() | st.text(max_size=5)),
        tuple(draw(st.lists(st.binary(max_size=5), max_size=2))),
    )
    return Stored(
        hashes,
        draw(st.none() | st.integers(0, 2**64 - 1)),
        as_tokens(tokens),
        size,
        hint,
        draw(st.sampled_from(list(Tier))),
        draw(st.integers(0, 1023)),
        draw(st.sampled_from(list(GroupKind))),
        draw(st.integers(0, 2**31 - 1)),
        tuple(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2))),
    )


def batches(events: st.SearchStrategy[Event]) -> st.SearchStrategy[Batch]:
    """Of few events each."""
    return st.builds(
        Batch,
        st.none(),
        st.integers(0, 2**64 - 1) | st.integers(0, 20),
        st.just(0.0) | st.floats(0, 2e9),
        st.lists(events, max_size=4).map(tuple),
        st.integers(0, 3),
    )


USUAL: st.SearchStrategy[Event] = st.one_of(chains(), chains(), removals(), removals(), offloads(), st.just(Cleared()))


@st.composite
def grouped(draw: st.DrawFn) -> Event:
    """The usual things in one of three cache groups: one with everything, one of a window, one that says nothing."""
    event = draw(USUAL)
    if isinstance(event, Cleared):
        return event
    group = draw(st.integers(0, 2))
    if isinstance(event, Removed):
        return replace(event, group=group)
    kind = (GroupKind.FULL, GroupKind.WINDOW, GroupKind.UNSTATED)[group]
    return replace(event, group=group, kind=kind, window_tokens=2 * SIZE if group == 1 else 0)


GROUPED: st.SearchStrategy[Event] = grouped()
ANY: st.SearchStrategy[Event] = st.one_of(
    wild_stores(),
    st.builds(Removed, st.lists(_HASHES, max_size=5).map(tuple), st.sampled_from(list(Tier)), st.integers(0, 3)),
    chains(),
    removals(),
    st.just(Cleared()),
)
