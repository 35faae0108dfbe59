"""Which model a request means, and what clients are told of the models there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from events.types import Batch, NamespaceHint, Stored
from gateway.cards import Card, aliased, card_data, merged
from gateway.errors import NoReplica, Refusal
from gateway.models import not_served, resolve
from gateway.request import Intent, Kind, Outcome, Prompt
from radix.namespace import Namespace
from tests.gateway.test_place import BLOCK, House, prompt_of

BASE = Card("m", context_tokens=100)
TUNED = Card("tuned", parent="m")


def house(*cards: tuple[Card, ...]) -> House:
    """A replica for each tuple of cards."""
    it = House(0)
    for number, told in enumerate(cards):
        names = tuple(card.name for card in told)
        it.fleet.learn_models(it.add(f"r{number}", names), names, told)
    return it


def meant(it: House, model: str | None, **fields: Any) -> tuple[str, Namespace]:
    return resolve(it.fleet, Intent(Kind.CHAT, fields, model=model))


@pytest.mark.parametrize("order", [(BASE, TUNED), (TUNED, BASE)])
def test_an_adapter_is_a_root_of_its_own_under_its_base(order: tuple[Card, ...]) -> None:
    """FC-18: as the events name it, wherever it stands in the list."""
    it = house(order)
    assert meant(it, "m") == ("m", Namespace("m"))
    assert meant(it, "tuned") == ("tuned", Namespace("m", adapter="tuned"))
    assert meant(it, "m:tuned") == ("m", Namespace("m", adapter="tuned"))
    assert meant(it, "m", lora_path="tuned") == ("m", Namespace("m", adapter="tuned"))


def test_blocks_of_an_adapter_are_found_by_its_name_only() -> None:
    """FC-18."""
    it = house((BASE, TUNED))
    tokens = prompt_of(64)
    replica = it.fleet.replicas["r0"]
    stored = Stored(tuple(range(4)), None, tokens, BLOCK, NamespaceHint("tuned"))
    it.index.apply(replica.holders[0], Batch(0, 0, 0.0, (stored,)))
    longer = np.concatenate([tokens, prompt_of(8, 1)])
    for model, credit in (("m", 0), ("tuned", 64), ("m:tuned", 64)):
        ticket = it.placer.place(Intent(Kind.CHAT, {}, model=model), Prompt(longer), "id")
        assert ticket.decision.credit_tokens == credit, model
        ticket.close(Outcome.CLIENT_ERROR)


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({}, None),
        ({"cache_salt": "s"}, "s"),
        ({"cache_salt": 3}, None),
        ({"cache_salt": ""}, ""),
        ({"extra_key": "e"}, "\0e"),
        ({"cache_salt": "s", "extra_key": "e"}, "s\0e"),
        ({"extra_key": ["e"]}, None),
    ],
)
def test_salts_separate(fields: dict[str, Any], salt: str | None) -> None:
    """FC-19: no salt and extra key together give the root of another salt."""
    assert meant(house((BASE,)), "m", **fields)[1].salt == salt


def test_an_adapter_is_asked_of_those_who_have_it() -> None:
    it = house((BASE,), (BASE, TUNED))
    for _ in range(3):
        assert it.placer.place(Intent(Kind.CHAT, {}, model="tuned"), Prompt(None), "id").replica.name == "r1"


def test_a_model_nobody_serves_is_refused_with_what_there_is() -> None:
    it = house((BASE, TUNED))
    with pytest.raises(Refusal, match=r"'other' does not exist; this gateway serves m, tuned$") as caught:
        meant(it, "other")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(Refusal, match="does not exist"):
        meant(it, "other:tuned")


def test_a_long_list_is_cut() -> None:
    """FC-59 and sane answers: ten names, each of a hundred characters at most."""
    names = [f"{number}{'x' * 600}" for number in range(50)]
    message = not_served("y" * 5000, names).message
    assert message.endswith("and 40 more")
    assert len(message) < 1400


def test_without_a_name_there_must_be_one_model() -> None:
    assert meant(house((BASE,)), None) == ("m", Namespace("m"))
    with pytest.raises(Refusal, match="'model' is required: this gateway serves m, tuned") as caught:
        meant(house((BASE, TUNED)), None)
    assert (caught.value.status, caught.value.param) == (400, "model")


def test_before_any_replica_has_said_what_it_serves() -> None:
    it = House(0)
    with pytest.raises(NoReplica):
        meant(it, "m")
    it.add("r0", ())
    assert meant(it, "anything") == ("", Namespace(""))


# --- what engines keep ---


def pinned(it: House, pin: str | None, *, seeks: bool = False, model: str | None = None) -> Any:
    return it.placer.place(Intent(Kind.STORED, {}, model=model, pin=pin, seeks=seeks), Prompt(None, "no_prompt"), "id")


def test_what_a_replica_keeps_is_asked_of_it_and_of_nobody_else() -> None:
    it = house((BASE,), (Card("other"),), (BASE,))
    for _ in range(5):
        ticket = pinned(it, "r2")
        assert ticket.replica.name == "r2"
        with pytest.raises(NoReplica, match=r"^no healthy replica$"):
            ticket.move(fault=True)
        ticket.close(Outcome.ENGINE_ERROR)
    it.fleet.replicas["r2"].healthy = False
    it.fleet.refresh(it.fleet.replicas["r2"])
    with pytest.raises(NoReplica):
        pinned(it, "r2", model="m")


def test_what_some_replica_keeps_is_looked_for_once_at_each() -> None:
    """Whatever its models and however many ranks it has."""
    it = house((BASE,), (Card("other"),), (BASE,))
    it.fleet.set_ranks(it.fleet.replicas["r0"], 3)
    ticket = pinned(it, None, seeks=True)
    asked = [ticket.replica.name]
    for _ in range(2):
        ticket.move(fault=False)
        asked.append(ticket.replica.name)
    with pytest.raises(NoReplica):
        ticket.move(fault=False)
    assert sorted(asked) == ["r0", "r1", "r2"]
    ticket.close(Outcome.CLIENT_ERROR)
    assert set(it.loads()) == {(0, 0, 0)}


# --- what clients are told ---


def test_cards_of_all_replicas_are_one_list() -> None:
    short = Card("m", context_tokens=50)
    assert merged([BASE, TUNED, short, Card("m"), Card("n")]) == [short, TUNED, Card("n")]


def test_aliases_are_shown_where_their_model_is_served() -> None:
    cards = aliased([BASE, TUNED], {"gpt": "m", "tuned": "m", "nobody": "x"})
    assert [(card.name, card.target, card.context_tokens) for card in cards] == [
        ("m", None, 100),
        ("gpt", "m", 100),
        ("tuned", "m", 100),
    ]


@pytest.mark.parametrize(
    ("card", "shown"),
    [
        (BASE, {"root": "m", "parent": None, "max_model_len": 100}),
        (TUNED, {"root": "tuned", "parent": "m"}),
        (Card("gpt", target="m"), {"root": "m", "parent": None}),
    ],
)
def test_a_card_has_the_shape_of_the_api(card: Card, shown: dict[str, Any]) -> None:
    assert card_data(card) == {"id": card.name, "object": "model", "created": 0, "owned_by": "trunkline", **shown}


def test_the_fleet_shows_what_its_replicas_serve() -> None:
    it = house((BASE, TUNED), (Card("n"),))
    it.add("old", ("o",))
    assert it.fleet.cards() == [BASE, TUNED, Card("n"), Card("o")]
    it.fleet.remove("r0")
    assert it.fleet.cards() == [Card("n"), Card("o")]
