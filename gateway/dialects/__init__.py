"""How each engine wants to be spoken to; quirks of an engine live in its file and nowhere else."""

from __future__ import annotations

from gateway.dialects.base import Abort, Dialect, Edits
from gateway.dialects.openai import OpenAI
from gateway.dialects.proof import IdsProof
from gateway.dialects.sglang import Sglang
from gateway.dialects.trtllm import TrtLlm
from gateway.dialects.trunkline import Trunkline
from gateway.dialects.vllm import Vllm
from gateway.errors import ConfigError

__all__ = ["Abort", "Dialect", "Edits", "IdsProof", "dialect_named"]

_DIALECTS: dict[str, Dialect] = {
    "openai": OpenAI(),
    "sglang": Sglang(),
    "trtllm": TrtLlm(),
    "trunkline": Trunkline(),
    "vllm": Vllm(),
}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name; raises ConfigError naming those there are."""
    try:
        return _DIALECTS[name]
    except KeyError:
        raise ConfigError(f"dialect {name!r} is not one of {', '.join(sorted(_DIALECTS))}") from None
