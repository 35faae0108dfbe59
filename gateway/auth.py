"""Client keys and what each may do: only their digests are known here, and nothing of a key is ever shown (FC-59)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from gateway.errors import ConfigError, Refusal

_LINE = re.compile(r"(?P<name>[^\s:]+):(?P<digest>[0-9A-Fa-f]{64})(?P<options>(?:\s+\S+)*)\s*")
_WHOLE = re.compile("[0-9]{1,15}")
_SIGNED = re.compile("-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one name may take; None for no limit. With several workers each gives an equal share of it.

    max_priority: a request that asks for more gets this. models: names it may ask for; empty for all.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and output
    concurrent: int | None = None
    max_priority: int | None = None
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key it is. Several keys may have one name, so that they can be changed without a gap."""

    name: str
    allowance: Allowance = field(default_factory=Allowance)


class Keys:
    """The keys clients may show. A look-up by digest takes the same time whatever part of a key is right."""

    def __init__(self, callers: dict[bytes, Caller]) -> None:
        self._callers = callers

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Read lines of `name:sha256hex [limit=value ...]`; empty lines and those that start with # are skipped.

        Raises ConfigError naming the file, the line by number and, where the line is one, the limit.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_keys_file: cannot read {path}: {type(error).__name__}") from error
        callers: dict[bytes, Caller] = {}
        allowances: dict[str, Allowance] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            where = f"api_keys_file: {path} line {number}"
            match = _LINE.fullmatch(line.strip())
            if match is None:  # the line may be a key by mistake: it is not repeated
                raise ConfigError(f"{where} is not name:sha256hex, with limits as name=value behind it")
            name, allowance = match["name"], _allowance(match["options"].split(), where)
            if allowances.setdefault(name, allowance) != allowance:
                raise ConfigError(f"{where}: {name!r} has other limits than with its first key")
            callers[bytes.fromhex(match["digest"])] = Caller(name, allowance)
        return cls(callers)

    def caller(self, key: bytes | None) -> Caller:
        """Whose key this is; raises Refusal 401. Costs 1 us and runs once per distinct head."""
        if key is None:
            raise Refusal(401, "a key is required: Authorization: Bearer KEY", kind="authentication_error", code="no_api_key")
        caller = self._callers.get(hashlib.sha256(key).digest())
        if caller is None:
            raise unknown_key()
        return caller

    def allowances(self) -> dict[str, Allowance]:
        """By name, in the order of the file."""
        return {caller.name: caller.allowance for caller in self._callers.values()}


def unknown_key() -> Refusal:
    """The answer to a key that nobody has."""
    return Refusal(401, "the key is not known", kind="authentication_error", code="invalid_api_key")


def _allowance(options: list[str], where: str) -> Allowance:
    given: dict[str, str] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or name not in Allowance.__dataclass_fields__:
            known = ", ".join(Allowance.__dataclass_fields__)
            raise ConfigError(f"{where}: a limit is one of {known}, as name=value")
        if name in given:
            raise ConfigError(f"{where}: {name} is there twice")
        given[name] = value
    models = frozenset(filter(None, given.get("models", "").split(",")))
    if "models" in given and not models:
        raise ConfigError(f"{where}: models names none")
    return Allowance(
        requests_per_minute=_number(given, "requests_per_minute", where),
        tokens_per_minute=_number(given, "tokens_per_minute", where),
        concurrent=_number(given, "concurrent", where),
        max_priority=_number(given, "max_priority", where, _SIGNED),
        models=models,
    )


def _number(given: dict[str, str], name: str, where: str, form: re.Pattern[str] = _WHOLE) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if form.fullmatch(value) is None or (form is _WHOLE and int(value) < 1):
        raise ConfigError(f"{where}: {name} must be a whole number{'' if form is _SIGNED else ' above 0'}, got {value[:20]!r}")
    return int(value)
