"""Explaining: the answer is what placing would do, and asking leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from events.types import Freshness
from gateway.choose.policies import POLICY_NAMES
from gateway.explain.ask import Explainer
from gateway.explain.row import explanation_row
from gateway.request import Intent, Kind, Outcome, Prompt, Usage
from tests.gateway.test_place import House, prompt_of


class NoPrompts:
    """These tests bring their tokens."""

    def of(self, *args: Any) -> Prompt:
        raise AssertionError(args)


def explainer(house: House) -> Explainer:
    return Explainer(house.placer, NoPrompts(), house.index)


def busy_house(policy: str, source: random.Random) -> House:
    """Four replicas that hold some prompts, with open requests, learned rates and views of every kind."""
    house = House(4, policy)
    for number, replica in enumerate(house.replicas):
        house.store(replica, prompt_of(source.randrange(16, 400), number % 2), number)
        house.fleet.view.freshness[replica.holders[0]] = source.choice(list(Freshness))
    for number in range(12):
        ticket = house.place(prompt_of(source.randrange(10, 300), number % 3))
        house.clock.now += source.random() * 0.2
        if source.random() < 0.6:
            ticket.first_byte()
        if source.random() < 0.4:
            ticket.close(Outcome.OK, Usage(ticket.prompt_tokens, 3, source.randrange(0, ticket.prompt_tokens)))
    return house


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_what_is_explained_is_what_placing_then_does(policy: str) -> None:
    source = random.Random(policy)
    for _ in range(30):
        house = busy_house(policy, source)
        tokens = None if source.random() < 0.1 else prompt_of(source.randrange(1, 400), source.randrange(3))
        fields = {"cache_salt": "tenant"} if source.random() < 0.3 else {}
        session = source.choice([None, "a", "b"])
        intent = Intent(Kind.CHAT, fields, model="m", stream=True, session=session)
        prompt = Prompt(tokens) if tokens is not None else Prompt(None, "template")
        told = explainer(house).judge(intent, prompt).choice.decision
        ticket = house.placer.place(intent, prompt, "id")
        assert told is not None
        assert (told.holder, told.reason, told.credit_tokens) == (
            ticket.replica.holders[0],
            ticket.decision.reason,
            ticket.decision.credit_tokens,
        )
        assert list(told.candidates) == list(ticket.decision.candidates) or np.isnan(told.price_s)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_asking_reserves_counts_and_remembers_nothing(policy: str) -> None:
    house = House(3, policy)
    intent = Intent(Kind.CHAT, {}, model="m")
    before = house.loads()
    for seed in range(5):
        explainer(house).judge(intent, Prompt(prompt_of(100, seed)))
        explainer(house).judge(intent, Prompt(None, "images"))
    assert house.loads() == before
    assert house.index.stats().guesses == 0
    assert (house.placer.counts.decisions, house.placer.counts.no_tokens) == ({}, {})
    assert not house.placer.receipts


def test_policies_that_take_turns_do_not_notice() -> None:
    house, asked = House(3, "round_robin"), House(3, "round_robin")
    for seed in range(9):
        explainer(asked).judge(Intent(Kind.CHAT, {}, model="m"), Prompt(prompt_of(20, seed)))
        assert asked.place(prompt_of(20, seed)).replica.name == house.place(prompt_of(20, seed)).replica.name


def test_the_terms_add_up_to_the_price_that_was_weighed() -> None:
    source = random.Random(3)
    for _ in range(50):
        house = busy_house("cost", source)
        told = explainer(house).judge(Intent(Kind.CHAT, {}, model="m"), Prompt(prompt_of(300, source.randrange(2))))
        assert told.choice.decision is not None
        weighed = {one.holder: one for one in told.choice.decision.candidates}
        assert weighed
        for facts in told.holders:
            terms = facts.terms
            assert terms is not None
            assert terms.price_s == pytest.approx(weighed[facts.holder].price_s)
            assert terms.wait_s + terms.prefill_s + terms.moving_s + terms.drag_s == pytest.approx(terms.price_s)
            assert terms.moving_s == 0  # all of it is on the device
            assert terms.credit_tokens == weighed[facts.holder].credit_tokens


def test_who_may_not_be_chosen_is_told_with_the_reason() -> None:
    house = House(3)
    other = house.add("other", ("different",))
    house.replicas[0].healthy, house.replicas[0].last_error = False, "ClientConnectorError: refused"
    house.replicas[1].draining = True
    for replica in house.replicas:
        house.fleet.refresh(replica)
    row = explanation_row(explainer(house).judge(Intent(Kind.CHAT, {}, model="m"), Prompt(prompt_of(40))))
    told = {one["replica"]: (one["not_eligible"], one["detail"]) for one in row["candidates"]}
    assert told == {
        "r0": ("down", "ClientConnectorError: refused"),
        "r1": ("draining", None),
        "r2": (None, None),
        other.name: ("model", "serves different"),
    }
    assert row["decision"]["replica"] == "r2"


def test_a_model_nobody_serves_and_a_fleet_that_is_down_are_refusals() -> None:
    house = House(2)
    house.fleet.models()
    row = explanation_row(explainer(house).judge(Intent(Kind.CHAT, {}, model="x"), Prompt(prompt_of(40))))
    assert (row["refused"]["status"], row["decision"], row["candidates"]) == (404, None, [])
    for replica in house.replicas:
        replica.healthy = False
        house.fleet.refresh(replica)
    row = explanation_row(explainer(house).judge(Intent(Kind.CHAT, {}, model="m"), Prompt(prompt_of(40))))
    assert row["refused"]["status"] == 503
    assert [one["not_eligible"] for one in row["candidates"]] == ["down", "down"]


def test_the_other_policies_are_asked_with_the_same_facts() -> None:
    house = House(2)
    tokens = prompt_of(160)
    house.store(house.replicas[1], tokens)
    holder = house.replicas[1].holders[0]
    house.fleet.load(holder, requests=30, queued_tokens=50_000)
    row = explanation_row(explainer(house).judge(Intent(Kind.CHAT, {}, model="m", session="s"), Prompt(tokens)))
    by_policy = {one["policy"]: one for one in row["policies"]}
    assert set(by_policy) == set(POLICY_NAMES)
    assert (by_policy["cost"]["replica"], by_policy["cost"]["reason"]) == ("r0", "price")
    assert by_policy["least_loaded"]["replica"] == "r0"
    assert by_policy["kv_aware"]["replica"] == "r0"  # the holder is too loaded for it
    assert by_policy["approximate"]["replica"] is None
    assert "sent before" in by_policy["approximate"]["why_not"]
    priced = {one["replica"]: one["price_s"] for one in row["candidates"]}
    assert by_policy["round_robin"]["price_s"] == priced[by_policy["round_robin"]["replica"]]


def test_nothing_of_the_prompt_or_of_a_salt_is_told() -> None:
    """FC-59: an explanation holds figures and names of ours."""
    house = House(1)
    intent = Intent(Kind.CHAT, {"cache_salt": "tenant-salt", "messages": [{"content": "a secret"}]}, model="m", session="user-7")
    text = str(explanation_row(explainer(house).judge(intent, Prompt(prompt_of(40)))))
    for secret in ("tenant-salt", "a secret", "user-7"):
        assert secret not in text
    assert "'salted': True" in text
