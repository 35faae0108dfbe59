"""How each engine wants to be spoken to; quirks of an engine live in its file and nowhere else."""

from __future__ import annotations

from gateway.dialects.base import Dialect
from gateway.dialects.openai import OpenAI
from gateway.dialects.trunkline import Trunkline
from gateway.errors import ConfigError

__all__ = ["Dialect", "dialect_named"]

_DIALECTS: dict[str, Dialect] = {"openai": OpenAI(), "trunkline": Trunkline()}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name; raises ConfigError naming those there are."""
    try:
        return _DIALECTS[name]
    except KeyError:
        raise ConfigError(f"dialect {name!r} is not one of {', '.join(sorted(_DIALECTS))}") from None
