"""The request log: a line per request, without prompts and keys."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.request import Intent, Kind, Outcome, Prompt, Usage
from gateway.request_log import STDOUT_VARIABLE, RequestLog
from tests.gateway.test_place import House, prompt_of

SECRET = "Wir fahren morgen los; sk-1234567890"


def place(house: House) -> None:
    fields = {"messages": [{"role": "user", "content": SECRET}], "cache_salt": SECRET, "user": SECRET}
    ticket = house.placer.place(Intent(Kind.CHAT, fields, model="m", session=SECRET), Prompt(prompt_of(40)), "id-1")
    ticket.close(Outcome.OK, Usage(40, 2, 0))


def test_a_line_has_the_receipts_fields_and_nothing_of_the_prompt(tmp_path: Path) -> None:
    """FC-59: keys and prompts are not logged."""
    house, file = House(), tmp_path / "requests.jsonl"
    file.write_text('{"older": true}\n')
    request_log = RequestLog(str(file))
    house.placer.witness = request_log
    place(house)
    request_log.spool.close()
    older, row = (json.loads(line) for line in file.read_text().splitlines())
    assert older == {"older": True}
    assert (row["request_id"], row["outcome"], row["reason"], row["prompt_tokens"]) == ("id-1", "ok", "load", 40)
    assert (row["predicted_cached_tokens"], row["realised_cached_tokens"], row["output_tokens"]) == (0, 0, 2)
    assert "candidates" not in row
    text = file.read_text()
    assert not any(SECRET[at : at + 6] in text for at in range(len(SECRET) - 5))


def test_stdout_may_be_another_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's own stdout leads to its supervisor."""
    read, write = os.pipe()
    monkeypatch.setenv(STDOUT_VARIABLE, str(write))
    house = House()
    house.placer.witness = request_log = RequestLog("-")
    place(house)
    request_log.spool.close()
    assert json.loads(os.read(read, 65536))["request_id"] == "id-1"
    os.close(read)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="request_log: cannot write"):
        RequestLog(str(tmp_path))
