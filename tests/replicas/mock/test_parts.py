"""The parts of the fake engine alone: events in every form, step times, faults and answers."""

from __future__ import annotations

import asyncio
import random
import time
from array import array

import numpy as np
import pytest

from events.decode import decode
from events.types import Batch, Cleared, Event, Removed, Stored
from radix.index import Index
from replicas.errors import BadRequest, ReplicaError
from replicas.generation import Generation, RequestHandle
from replicas.mock.cost import StepTimes, due_at
from replicas.mock.faults import Faults, fault_of_flag
from replicas.mock.groups import parse_groups
from replicas.mock.pool import CachePool, hint_of, namespace_of
from replicas.mock.rank import Rank, Sizes
from replicas.mock.tokens import Answer, ByteCodec, answer_text
from replicas.mock.wire import OneCopy, encoder_of
from replicas.sampling import Sampling


def view_of(pool: CachePool, *, counting: bool) -> bytes:
    """The digest of an index that holds what the pool says it holds."""
    index = Index()
    holder = index.holder("r", 0)
    for held in pool.contents():
        event = Stored((held.name,), held.parent, np.frombuffer(held.tokens, np.int32), pool.block_tokens, hint_of(held.salt))
        index.apply(holder, Batch(0, 0, 0.0, (event,) * (held.copies if counting else 1)))
    return index.digest(holder)


@pytest.mark.parametrize(("dialect", "form"), [("vllm", "map"), ("vllm", "array"), ("sglang", "map"), ("sglang", "array")])
def test_events_of_every_form_rebuild_the_pool(dialect: str, form: str) -> None:
    """FC-06, FC-15: a random life of a small pool, salts and copies included, over bytes and back."""
    rng = random.Random(3)
    counting = dialect != "sglang"
    encode, told = encoder_of(dialect, form), OneCopy()
    adapters = (None, "a1") if (dialect, form) != ("sglang", "array") else (None,)  # that form has no names of adapters
    pool = CachePool(14, 4)
    index = Index()
    holder = index.holder("r", 0, counting=counting)
    open_blocks: list[list[int]] = []
    known: set[int] = set()
    for step in range(200):
        namespace = namespace_of(rng.choice(adapters), rng.choice((None, "s1", "s2")))
        tokens = array("i", [rng.randrange(2) for _ in range(4 * rng.randrange(1, 5))])
        hits = pool.lookup(tokens, namespace) if rng.random() < 0.7 else []  # without a look, one more copy
        blocks = pool.allocate(len(tokens) // 4 - len(hits), hits)
        if blocks is None:
            pool.free(open_blocks.pop(rng.randrange(len(open_blocks))))
        else:
            whole = [*hits, *blocks]
            pool.commit(whole, len(hits), tokens[4 * len(hits) :], namespace)
            open_blocks.append(whole)
        if rng.random() < 0.01:
            for each in open_blocks:
                pool.free(each)
            open_blocks.clear()
            assert pool.reset()
        events = pool.drain_events()
        if not counting:
            events = told(events)
            for event in events:
                if isinstance(event, Stored):
                    assert known.isdisjoint(event.hashes), "a block is told once"
                    known.update(event.hashes)
                else:
                    known.difference_update(event.hashes if isinstance(event, Removed) else known)
        batch = decode(encode(events, 0.0, 3), step)
        assert (batch.rank, batch.skipped) == (3, 0)
        index.apply(holder, batch)
        assert index.digest(holder) == view_of(pool, counting=counting), step


def test_kinds_of_groups_travel_in_both_forms() -> None:
    pool = CachePool(8, 4, parse_groups("window:12,full"))
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.commit(blocks, 0, array("i", range(8)))
    events = pool.drain_events()
    read = [decode(encoder_of("vllm", form)(events, 0.0, 0), 0).events for form in ("map", "array")]
    facts = [[(one.group, one.kind, one.window_tokens) for one in each if isinstance(one, Stored)] for each in read]
    assert facts[0] == facts[1] == [(one.group, one.kind, one.window_tokens) for one in events if isinstance(one, Stored)]
    assert [group for group, _, _ in facts[0]] == [1, 0]


def test_steps_take_what_they_compute() -> None:
    times = StepTimes(prefill_tokens_per_s=1000, decode_s=0.01, sequence_s=0.001)
    assert times.step_s(prefill_tokens=500, sequences=1) == pytest.approx(0.501)
    assert times.step_s(prefill_tokens=0, sequences=8) == pytest.approx(0.018)
    assert times.step_s(prefill_tokens=5, sequences=2) == pytest.approx(0.012)  # hidden behind the weights
    assert StepTimes(scale=0).step_s(prefill_tokens=10**6, sequences=9) == 0
    with pytest.raises(ReplicaError, match="prefill_tokens_per_s"):
        StepTimes(prefill_tokens_per_s=0)


def test_steps_that_woke_late_are_made_up_for_a_little() -> None:
    assert due_at(10.0, 9.99, 0.02) == pytest.approx(10.02)
    assert due_at(10.0, 10.03, 0.02) == pytest.approx(10.02)
    assert due_at(10.0, 11.0, 0.02) == pytest.approx(10.97)


async def test_a_request_after_a_rest_takes_its_whole_step() -> None:
    told: list[Event] = []
    rank = Rank(0, Sizes(), StepTimes(decode_s=0.08), ByteCodec(), told.extend, announces_start=True)
    stepping = asyncio.create_task(rank.run())
    await asyncio.sleep(0.06)
    handle = RequestHandle(Generation(prompts=(array("i", [1, 2]),), sampling=Sampling(), max_tokens=1), rank.cancel)
    started = time.monotonic()
    rank.submit(handle, "m", "length")
    output = await anext(handle)
    assert (output.finish_reason, output.generated) == ("length", 1)
    assert time.monotonic() - started >= 0.08
    rank.restart("told to")
    assert told == [Cleared(), Cleared()]  # each life of such an engine begins with it
    stepping.cancel()


def test_faults_strike_at_their_rate_and_as_often_as_told() -> None:
    faults = Faults(seed=1)
    faults.set(*fault_of_flag("error:503@0.25"))
    hits = [faults.hit("error") for _ in range(2000)]
    assert set(hits) == {None, 503.0}
    assert 400 < faults.hits["error"] < 600
    faults.set(*fault_of_flag("cut:3x2"))
    assert [faults.hit("cut") for _ in range(4)] == [3.0, 3.0, None, None]
    again = Faults(seed=1)
    again.set(*fault_of_flag("error:503@0.25"))
    assert [again.hit("error") for _ in range(2000)] == hits
    for wrong in ("error@2", "odd", "cut:x", "cut x3", "error:200", "sick:9999"):
        with pytest.raises(BadRequest):
            faults.set(*fault_of_flag(wrong))


def test_an_answer_is_the_prompts_and_the_models_own() -> None:
    codec = ByteCodec()
    for model, prompt in (("m", array("i", [1, 2])), ("m", array("i", [1, 3])), ("n", array("i", [1, 2]))):
        answer = Answer(model, prompt, codec)
        pieces = [answer.next() for _ in range(200)]
        text = "".join(text for _, text in pieces)
        assert text == answer_text(model, prompt, 40)[:200]
        assert [token for token, _ in pieces] == codec.text(text).tolist()
    assert len({answer_text(model, ids, 1) for model in ("m", "n") for ids in ([1, 2], [1, 3], [1])}) == 6
