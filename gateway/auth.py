"""Client keys: only their digests are known here, and nothing of a key is ever shown (FC-59)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gateway.errors import ConfigError, Refusal

_LINE = re.compile(r"(?P<name>[^\s:]+):(?P<digest>[0-9A-Fa-f]{64})")


class Keys:
    """The keys clients may show. A look-up by digest takes the same time whatever part of a key is right."""

    def __init__(self, names: dict[bytes, str]) -> None:
        self._names = names

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Read lines of `name:sha256hex`; empty lines and lines that start with # are skipped; raises ConfigError."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_keys_file: cannot read {path}: {type(error).__name__}") from error
        names: dict[bytes, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:  # the line may be a key by mistake: it is not repeated
                raise ConfigError(f"api_keys_file: {path} line {number} is not name:sha256hex")
            names[bytes.fromhex(match["digest"])] = match["name"]
        return cls(names)

    def name_of(self, key: bytes | None) -> str:
        """Whose key this is; raises Refusal 401. Costs 1 us and runs once per distinct head."""
        if key is None:
            raise Refusal(401, "a key is required: Authorization: Bearer KEY", kind="authentication_error", code="no_api_key")
        name = self._names.get(hashlib.sha256(key).digest())
        if name is None:
            raise Refusal(401, "the key is not known", kind="authentication_error", code="invalid_api_key")
        return name
