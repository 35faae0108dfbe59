"""Which model a request means: a name that is served, an adapter, or none because an engine keeps what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.cards import ANY_MODEL
from gateway.errors import NoReplica, Refusal
from gateway.request import Intent
from radix.namespace import Namespace

_MOST_NAMED = 10
_LONGEST_NAME = 100


def not_served(model: str, served: Sequence[str]) -> Refusal:
    """404 that names what there is, up to a bound."""
    named = ", ".join(name[:_LONGEST_NAME] for name in served[:_MOST_NAMED])
    rest = f" and {len(served) - _MOST_NAMED} more" if len(served) > _MOST_NAMED else ""
    message = f"the model {model!r:.100} does not exist; this gateway serves {named}{rest}"
    return Refusal(404, message, param="model", code="model_not_found")


class Served(Protocol):
    """What a fleet says of its models."""

    def models(self) -> tuple[str, ...]:
        """Names served by any replica."""
        ...

    def serves_any(self) -> bool:
        """Some replica has not said what it serves."""
        ...

    def canonical(self, model: str) -> str:
        """The name a replica's blocks are filed under."""
        ...

    def adapter(self, model: str) -> str | None:
        """The adapter of that name; None for a model."""
        ...


def resolve(fleet: Served, intent: Intent) -> tuple[str, Namespace]:
    """(name by which holders are chosen, where in the index); raises NoReplica, or Refusal 400 or 404 naming what is served."""
    model, adapter = _model(fleet, intent)
    return model, Namespace(fleet.canonical(model), adapter=adapter, salt=_salt(intent.fields))


def _model(fleet: Served, intent: Intent) -> tuple[str, str | None]:
    served, asked = fleet.models(), intent.model
    if asked is None:
        if intent.pin is not None or intent.seeks:
            return ANY_MODEL, None
        if len(served) > 1:
            named = ", ".join(name[:_LONGEST_NAME] for name in served[:_MOST_NAMED])
            raise Refusal(400, f"'model' is required: this gateway serves {named}", param="model")
        asked = served[0] if served else ""
    chosen = intent.fields.get("lora_path")  # of SGLang's own API
    adapter = chosen if isinstance(chosen, str) and chosen else None
    if asked in served:
        return asked, adapter or fleet.adapter(asked)
    base, colon, name = asked.partition(":")
    if colon and base in served:  # SGLang's way to name an adapter in other APIs; whether there is one it knows itself
        return base, adapter or name or None
    if fleet.serves_any():
        return "", adapter
    if not served:
        raise NoReplica(intent.model)
    raise not_served(asked, served)


def _salt(fields: Mapping[str, Any]) -> str | None:
    """What separates equal prompts. `extra_key` is SGLang's second salt, which its events do not tell: by it nothing is found but
    what was sent there lately.
    """
    salt, extra = fields.get("cache_salt"), fields.get("extra_key")
    salt = salt if isinstance(salt, str) else None
    return f"{salt or ''}\0{extra}" if isinstance(extra, str) and extra else salt
