"""Placing: load that never leaks, credit that follows the index, receipts that tell what happened."""

from __future__ import annotations

import random

import numpy as np
import pytest

from events.types import Batch, Freshness, Stored
from gateway.choose.policies import policy_named
from gateway.choose.rates import Rates
from gateway.errors import NoReplica, Refusal
from gateway.fleet import Address, Fleet, Replica
from gateway.place import FleetPlacer, FleetTicket
from gateway.request import Intent, Kind, Outcome, Prompt, Usage
from radix.index import Index
from radix.match import Int32Array

BLOCK = 16


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class House:
    """A fleet of `count` replicas of model 'm', its index and its placer."""

    def __init__(self, count: int = 2, policy: str = "cost") -> None:
        self.clock = Clock()
        self.index = Index()
        self.fleet = Fleet(self.index, Rates())
        self.faults: list[Replica] = []
        self.placer = FleetPlacer(
            self.fleet,
            self.index,
            policy_named(policy),
            guess_ttl_s=10.0,
            receipts=100,
            on_fault=self.faults.append,
            clock=self.clock,
        )
        self.replicas = [self.add(f"r{number}") for number in range(count)]

    def add(self, name: str, models: tuple[str, ...] = ("m",)) -> Replica:
        replica = self.fleet.add(name, Address.parse(f"http://{name}:8000"), dialect="openai")
        self.fleet.learn_models(replica, models)
        self.fleet.view.freshness[replica.holders[0]] = Freshness.LIVE
        return replica

    def store(self, replica: Replica, tokens: Int32Array, seq: int = 0) -> None:
        count = len(tokens) // BLOCK
        hashes = tuple(range(1000 + 100 * seq, 1000 + 100 * seq + count))
        batch = Batch(0, seq, 0.0, (Stored(hashes, None, tokens[: count * BLOCK], BLOCK),))
        self.index.apply(replica.holders[0], batch)

    def place(
        self, tokens: Int32Array | None, *, model: str | None = "m", stream: bool = True, salt: str | None = None
    ) -> FleetTicket:
        fields = {} if salt is None else {"cache_salt": salt}
        intent = Intent(Kind.CHAT, fields, model=model, stream=stream)
        prompt = Prompt(tokens) if tokens is not None else Prompt(None, "template")
        return self.placer.place(intent, prompt, "id")

    def loads(self) -> list[tuple[int, int, int]]:
        view = self.fleet.view
        return [(view.in_flight[h], view.queued_tokens[h], view.decode_load[h]) for h in self.fleet.by_holder]


def prompt_of(length: int, seed: int = 0) -> Int32Array:
    return np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32)


def test_a_follow_up_goes_to_the_holder_and_predicts_whole_blocks_but_never_the_last_token() -> None:
    house = House()
    tokens = prompt_of(64)
    house.store(house.replicas[1], tokens)
    longer = np.concatenate([tokens, prompt_of(40, 1)])
    ticket = house.place(longer)
    assert (ticket.replica.name, ticket.decision.reason, ticket.decision.credit_tokens) == ("r1", "credit", 64)
    ticket.close(Outcome.OK)
    exact = house.place(tokens)
    assert exact.decision.credit_tokens == 48  # the block of the last token has to be computed again


def test_load_waits_then_decodes_then_is_gone() -> None:
    house = House(1)
    ticket = house.place(prompt_of(100))
    assert house.loads() == [(1, 100, 0)]
    ticket.first_byte()
    assert house.loads() == [(1, 0, 1)]
    ticket.close(Outcome.OK, Usage(100, 5, 0))
    assert house.loads() == [(0, 0, 0)]
    ticket.close(Outcome.CUT)
    assert house.loads() == [(0, 0, 0)]
    assert len(house.placer.receipts) == 1


def test_a_thousand_requests_ended_in_every_way_leave_no_load_behind() -> None:
    """FC-29: whatever happens to a request, in whatever order, all counters are zero at the end."""
    house, rng = House(3), random.Random(7)
    tickets: list[FleetTicket] = []
    for number in range(1000):
        house.clock.now += rng.random() * 0.01
        tickets.append(house.place(prompt_of(rng.randrange(1, 80), number % 5), stream=rng.random() < 0.5))
        if rng.random() < 0.2:
            ticket = tickets[-1]
            try:
                ticket.move(fault=rng.random() < 0.5)
            except NoReplica:
                ticket.close(Outcome.ENGINE_ERROR)
        if rng.random() < 0.3:
            rng.choice(tickets).first_byte()
        if rng.random() < 0.5:
            rng.choice(tickets).close(rng.choice(list(Outcome)))
    for ticket in tickets:
        ticket.close(Outcome.CLIENT_LEFT)
    house.clock.now += 3600
    house.placer.due.run(house.clock.now)
    house.index.expire(house.clock.now)
    assert house.loads() == [(0, 0, 0)] * 3
    assert house.index.stats().guesses == 0
    assert len(house.placer.due) == 0


def test_a_request_without_a_stream_stops_waiting_after_its_expected_prefill() -> None:
    house = House(1)
    ticket = house.place(prompt_of(100), stream=False)
    assert house.loads() == [(1, 100, 0)]
    house.clock.now += 3600
    house.placer.due.run(house.clock.now)
    assert house.loads() == [(1, 0, 1)]
    ticket.close(Outcome.OK)
    assert house.loads() == [(0, 0, 0)]


def test_siblings_follow_the_guess_before_any_event_and_a_failed_first_one_withdraws_it() -> None:
    """FC-28: a short-lived guess stands in for the event; it goes when the request that made it fails."""
    house = House(4)
    tokens = prompt_of(4000)
    first = house.place(tokens)
    second = house.place(tokens)
    assert second.replica is first.replica or second.decision.reason == "price"
    first.close(Outcome.ENGINE_ERROR)
    second.close(Outcome.ENGINE_ERROR)
    assert house.place(tokens).decision.credit_tokens == 0


def test_a_guess_and_its_event_are_not_counted_twice() -> None:
    """FC-28: confirmation replaces the guess."""
    house = House(1)
    tokens = prompt_of(160)
    first = house.place(tokens)
    house.store(house.replicas[0], tokens)
    first.first_byte()
    assert house.place(tokens).decision.credit_tokens == 144
    first.close(Outcome.OK)
    assert house.place(tokens).decision.credit_tokens == 144


def test_move_tries_every_replica_once_and_reports_the_fault() -> None:
    house = House(3)
    ticket = house.place(prompt_of(32))
    seen = {ticket.replica.name}
    for fault in (True, False):
        ticket.move(fault=fault)
        seen.add(ticket.replica.name)
    assert seen == {"r0", "r1", "r2"}
    assert len(house.faults) == 1
    with pytest.raises(NoReplica):
        ticket.move(fault=False)
    assert house.loads() == [(0, 0, 0)] * 3
    ticket.close(Outcome.ENGINE_ERROR)
    assert house.placer.receipts[-1].attempts == 3
    assert sum(house.placer.counts.outcomes.values()) == 1


def test_salted_prompts_share_nothing_with_others() -> None:
    """FC-20: B gets no credit from A's blocks; the request side uses the event side's key."""
    house = House(1)
    tokens = prompt_of(64)
    house.place(tokens, salt="a").close(Outcome.OK)
    house.store(house.replicas[0], tokens)
    assert house.place(tokens, salt="b").decision.credit_tokens == 0
    assert house.place(tokens).decision.credit_tokens == 48


def test_a_prompt_without_tokens_goes_by_load_and_its_reason_is_counted() -> None:
    """FC-22: it is served, and never counts as 'no cache'."""
    house = House()
    ticket = house.place(None)
    assert ticket.decision.reason == "no_tokens"
    assert house.placer.counts.no_tokens["template"] == 1
    ticket.close(Outcome.OK, Usage(50, 1, 48))
    assert house.placer.counts.predictions == 0


def test_models_are_routed_to_those_that_serve_them() -> None:
    house = House(1)
    other = house.add("other", models=("n", "n-alias"))
    assert {house.place(prompt_of(8), model=name).replica.name for name in ("n", "n-alias")} == {"other"}
    assert house.place(prompt_of(8)).replica.name == "r0"
    with pytest.raises(Refusal) as caught:
        house.place(prompt_of(8), model="nobody")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(Refusal, match="'model' is required"):
        house.place(prompt_of(8), model=None)
    house.store(other, prompt_of(64, 3))
    assert house.place(prompt_of(64, 3), model="n-alias").decision.credit_tokens == 48


def test_only_eligible_replicas_are_chosen_and_none_means_no_replica() -> None:
    """FC-26: an unhealthy replica counts for nothing, however idle it is."""
    house = House()
    tokens = prompt_of(64)
    house.store(house.replicas[0], tokens)
    house.replicas[0].healthy = False
    house.fleet.refresh(house.replicas[0])
    assert house.place(tokens).replica.name == "r1"
    house.replicas[1].draining = True
    house.fleet.refresh(house.replicas[1])
    with pytest.raises(NoReplica):
        house.place(tokens)
    assert house.loads()[0] == (0, 0, 0)


def test_receipts_hold_prediction_and_what_really_happened() -> None:
    house = House()
    tokens = prompt_of(64)
    house.store(house.replicas[0], tokens)
    ticket = house.place(tokens)
    house.clock.now += 0.25
    ticket.first_byte()
    house.clock.now += 1.0
    ticket.close(Outcome.OK, Usage(64, 7, 48))
    receipt = house.placer.receipts[-1]
    assert (receipt.replica, receipt.tokens_in, receipt.realised_tokens, receipt.tokens_out) == ("r0", 64, 48, 7)
    assert (receipt.ttft_s, receipt.duration_s, receipt.outcome) == (0.25, 1.25, "ok")
    assert {candidate.holder for candidate in receipt.decision.candidates} == {0, 1}
    assert house.placer.counts.exact_predictions == 1


def test_an_engine_that_counts_other_prompt_tokens_is_noticed_and_teaches_nothing() -> None:
    house = House(1)
    house.place(prompt_of(64)).close(Outcome.OK, Usage(65, 1, 64))
    assert house.placer.counts.token_mismatches == 1
    assert house.placer.counts.predictions == 0


def test_a_removed_replica_leaves_nothing_and_its_open_tickets_close_quietly() -> None:
    """FC-14: no entry refers to it; a ticket that outlives it gives back nothing twice."""
    house = House(2, policy="round_robin")
    tickets = [house.place(prompt_of(32)) for _ in range(4)]
    house.fleet.remove("r0")
    for ticket in tickets:
        ticket.close(Outcome.OK, Usage(32, 1, 0))
    assert house.loads() == [(0, 0, 0)]
    assert list(house.fleet.replicas) == ["r1"]
    replacement = house.add("r2")
    assert house.fleet.view.in_flight[replacement.holders[0]] == 0


def test_only_an_engines_own_count_says_whether_it_gets_ids(caplog: pytest.LogCaptureFixture) -> None:
    """FC-22: what it counted of our ids is no proof."""
    house = House(1)
    proof = house.replicas[0].ids

    def answered(prompt_tokens: int, *, sent_ids: bool) -> bool:
        intent = Intent(Kind.COMPLETION, {}, model="m", stream=True)
        ticket = house.placer.place(intent, Prompt(prompt_of(64)), "id")
        intent.sent_ids = sent_ids
        ticket.first_byte()
        ticket.close(Outcome.OK, Usage(prompt_tokens, 1))
        return proof.agree

    assert not answered(60, sent_ids=False)
    assert not answered(64, sent_ids=True)
    assert not answered(61, sent_ids=False)
    assert answered(64, sent_ids=False)
    assert answered(64, sent_ids=False)
    assert [record.getMessage() for record in caplog.records] == [
        "prompt counts differ replica=r0",
        "prompt counts agree again replica=r0",
    ]
