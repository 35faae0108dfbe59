"""The command: what it prints where, and how it exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from gateway.cli import main


def test_version_prints_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["version"].count(".") == 2


def test_check_config_answers_0_for_a_good_file_and_1_for_a_wrong_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("replicas: [{url: 'http://a:1'}]")
    assert main(["check-config", str(path)]) == 0
    assert "1 replicas" in capsys.readouterr().out
    path.write_text("listen: {port: -1}")
    assert main(["check-config", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "listen.port" in captured.err
    assert main(["check-config", "--json", str(path)]) == 1
    assert orjson.loads(capsys.readouterr().out)["ok"] is False


def test_check_config_shows_no_password_of_redis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FC-59: the settings are printed, the secret in a URL is not."""
    path = tmp_path / "c.yaml"
    path.write_text("replicas: [{url: 'http://a:1'}]\nredis: {url: 'rediss://u:geheim@h:6379/1'}")
    assert main(["check-config", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert orjson.loads(out)["settings"]["redis"] == {"url": "rediss://h:6379/1", "prefix": "trunkline"}
    assert "geheim" not in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "nonsense"),
        (["serve", "--port", "x"], "--port"),
        (["serve"], "none given"),
        (["serve", "--replica", "ftp://a"], "ftp://a"),
        (["serve", "--replica", "http://a:1", "--policy", "best"], "best"),
        (["serve", "--replica", "http://key:secret99@a:1"], "credentials"),
    ],
)
def test_wrong_use_exits_2_and_complains_on_stderr(
    arguments: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert "secret99" not in captured.err


def test_help_lists_every_command_and_a_room_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("serve", "replica", "model", "simulate", "check-config", "version"):
        assert command in text
    assert main(["simulate", "--help"]) == 0
    assert "compare" in capsys.readouterr().out


def test_the_command_runs_as_an_installed_program() -> None:
    answer = subprocess.run([Path(sys.executable).with_name("trunkline"), "version"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert answer.stderr == ""
