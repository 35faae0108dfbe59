"""What replicas say of the models they serve, merged into the one list that clients see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ANY_MODEL = "*"  # of a request that names no model because an engine keeps what it is about


@dataclass(frozen=True, slots=True)
class Card:
    """One name of a model. parent: the model that it adapts; target: the name it stands for; context_tokens: 0 where unknown."""

    name: str
    parent: str | None = None
    target: str | None = None
    context_tokens: int = 0


def card_data(card: Card) -> dict[str, Any]:
    """A card as /v1/models shows it."""
    data: dict[str, Any] = {"id": card.name, "object": "model", "created": 0, "owned_by": "trunkline"}
    data |= {"root": card.target or card.name, "parent": card.parent}
    return data | ({"max_model_len": card.context_tokens} if card.context_tokens else {})


def merged(cards: Sequence[Card]) -> list[Card]:
    """One card for each name, in the order they come; of several contexts the shortest, which all replicas can take."""
    found: dict[str, Card] = {}
    for card in cards:
        known = found.setdefault(card.name, card)
        lengths = [length for length in (known.context_tokens, card.context_tokens) if length]
        found[card.name] = replace(known, context_tokens=min(lengths, default=0))
    return list(found.values())


def aliased(cards: Sequence[Card], aliases: Mapping[str, str]) -> list[Card]:
    """The cards with those of the aliases whose models are served."""
    by_name = {card.name: card for card in cards}
    shown = [replace(by_name[target], name=alias, target=target) for alias, target in aliases.items() if target in by_name]
    return [*(card for card in cards if card.name not in aliases), *shown]
