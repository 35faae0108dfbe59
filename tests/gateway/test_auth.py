"""Client keys."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.auth import Allowance, Keys
from gateway.errors import ConfigError, Refusal


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_known_keys_have_names(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# keys\n\nalice:{digest('sk-alice')}\nbob:{digest('sk-bob').upper()}\n", encoding="utf-8")
    keys = Keys.load(path)
    assert keys.caller(b"sk-alice").name == "alice"
    assert keys.caller(b"sk-bob").name == "bob"


@pytest.mark.parametrize("key", [None, b"", b"sk-alic", b"sk-alice "])
def test_any_other_key_is_refused(tmp_path: Path, key: bytes | None) -> None:
    """FC-59: the refusal shows nothing of the key."""
    path = tmp_path / "keys"
    path.write_text(f"alice:{digest('sk-alice')}\n", encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        Keys.load(path).caller(key)
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


def test_limits_stand_behind_a_key_and_several_keys_share_a_name(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    limits = "requests_per_minute=600  tokens_per_minute=1000000 concurrent=50 max_priority=-1 models=a,b/c"
    path.write_text(f"alice:{digest('one')} {limits}\nalice:{digest('two')} {limits}\nbob:{digest('three')}\n", encoding="utf-8")
    keys = Keys.load(path)
    assert keys.caller(b"one") == keys.caller(b"two")
    assert keys.caller(b"two").allowance == Allowance(600, 1_000_000, 50, -1, frozenset({"a", "b/c"}))
    assert keys.allowances() == {"alice": keys.caller(b"one").allowance, "bob": Allowance()}


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ("requests=5", "a limit is one of requests_per_minute, tokens_per_minute, concurrent, max_priority, models"),
        ("sk-secret-key", "a limit is one of"),
        ("concurrent=0", "concurrent must be a whole number above 0, got '0'"),
        ("concurrent=-1", "concurrent must be a whole number above 0, got '-1'"),
        ("tokens_per_minute=1e6", "tokens_per_minute must be a whole number above 0, got '1e6'"),
        ("max_priority=high", "max_priority must be a whole number, got 'high'"),
        ("concurrent=1 concurrent=2", "concurrent is there twice"),
        ("models=,", "models names none"),
    ],
)
def test_a_wrong_limit_is_named_with_its_line(tmp_path: Path, limits: str, complaint: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice:{digest('a')} {limits}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"line 1: {complaint}") as caught:
        Keys.load(path)
    assert "secret" not in str(caught.value)


def test_one_name_has_one_set_of_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice:{digest('a')} concurrent=1\nalice:{digest('b')} concurrent=2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: 'alice' has other limits than with its first key"):
        Keys.load(path)
