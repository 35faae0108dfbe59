"""Client keys."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.auth import Keys
from gateway.errors import ConfigError, Refusal


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_known_keys_have_names(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# keys\n\nalice:{digest('sk-alice')}\nbob:{digest('sk-bob').upper()}\n", encoding="utf-8")
    keys = Keys.load(path)
    assert keys.name_of(b"sk-alice") == "alice"
    assert keys.name_of(b"sk-bob") == "bob"


@pytest.mark.parametrize("key", [None, b"", b"sk-alic", b"sk-alice "])
def test_any_other_key_is_refused(tmp_path: Path, key: bytes | None) -> None:
    """FC-59: the refusal shows nothing of the key."""
    path = tmp_path / "keys"
    path.write_text(f"alice:{digest('sk-alice')}\n", encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        Keys.load(path).name_of(key)
    assert caught.value.status == 401
    assert b"alic" not in caught.value.body()


@pytest.mark.parametrize("line", ["sk-secret-key", "alice:sk-secret-key", f":{digest('a')}", f"al ice:{digest('a')}"])
def test_a_wrong_line_is_named_but_not_repeated(tmp_path: Path, line: str) -> None:
    """FC-59: such a line may be the key itself."""
    path = tmp_path / "keys"
    path.write_text(f"# first\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2") as caught:
        Keys.load(path)
    assert "secret" not in str(caught.value)


def test_a_file_that_can_not_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="api_keys_file"):
        Keys.load(tmp_path / "none")
