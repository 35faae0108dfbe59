"""The gateway before two real vLLM engines on the CPU: `make test-vllm`.

Both serve SmolLM2-135M. What is checked: tokens equal the engine's own, requests go where events say the prompt is, cached tokens
are predicted exactly, streams pass, a client that leaves stops its engine, and an engine that is killed is gone around, comes
back and is believed to be empty. The last line of stdout is one JSON object; exit status 1 when a check failed.

The first run installs vLLM (3.5 GB, about 15 minutes); each run starts two engines, one after the other, a minute each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.demo.processes import trunkline
from benchmarks.environments import CannotInstall
from gateway.tokenize.folder import model_folder
from tests.fakes.mock_engines import OpenStream
from tests.vllm.engines import BLOCK_TOKENS, MODEL, Vllm, install
from tests.vllm.fleet import Front, ask, running, wait_for

_EVENTS_S, _SETTLE_S, _STOPS_S, _BACK_S = 10.0, 1.0, 2.0, 60.0
_RULES = (
    "You are the help desk of a library by the sea. Books may be kept for a month, films for a week, games for a year. "
    "Who brings something back late tells the keeper why, and the keeper writes it down in the big blue book beside the door. "
    "Children may borrow nine things at a time and grown-ups seven. Answer in plain sentences and keep them short, please."
)


def _chat(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": question}]


class Checks:
    """All checks, in the order they are to run."""

    def __init__(self, front: Front, engines: list[Vllm]) -> None:
        self._front = front
        self._engines = engines
        self._prompts = 0

    def tokens_are_the_engines(self) -> None:
        """The length is counted by both: the gateway before, the engine behind."""
        for question in ("Hello!", "Où est la bibliothèque ?  \n\n  🚢 1234567 def f(x): return x", "a" * 300):
            told = ask(self._front.base, _chat(question))
            assert told.status == 200, told.body
            assert int(told.fields["x-trunkline-prompt-tokens"]) == told.usage["prompt_tokens"]

    def routed_by_events(self) -> None:
        """FC-63: a prompt that one engine got behind the gateway's back is found there, by events alone."""
        for engine in (self._engines[1], self._engines[0]):
            self._prompts += 1
            chat = [{"role": "user", "content": f"{self._prompts}: {_RULES * 6}"}]  # so long that finding it is worth most
            before = self._settled_blocks()
            prompt_tokens = ask(engine.url, chat).usage["prompt_tokens"]
            self._until_blocks(before + prompt_tokens // BLOCK_TOKENS)  # its number is in the first, so none is shared
            time.sleep(_SETTLE_S)  # how large an engine's blocks are is looked up twice a second
            told = ask(self._front.base, chat)
            assert told.fields["x-trunkline-replica"] == engine.name, self._front.receipt()
            assert told.fields["x-trunkline-reason"] == "credit", self._front.receipt()
            predicted = int(told.fields["x-trunkline-predicted-cached-tokens"])
            assert predicted == told.cached_tokens >= 2 * BLOCK_TOKENS, self._front.receipt()

    def _until_blocks(self, count: int) -> None:
        wait_for(lambda: self._front.blocks() >= count or None, f"{count} blocks to be told", _EVENTS_S)

    def _settled_blocks(self) -> int:
        """How many there are once no more come."""
        before = -1
        while (now := self._front.blocks()) != before:
            before = now
            time.sleep(_SETTLE_S)
        return now

    def a_growing_chat_stays_and_is_predicted(self) -> None:
        chat = _chat("May my daughter keep the film until Sunday?")
        first = ask(self._front.base, chat, max_tokens=24)
        home = first.fields["x-trunkline-replica"]
        chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And the game?"}]
        for _ in range(3):
            time.sleep(0.5)  # the events of the answer before are told with the next step
            told = ask(self._front.base, chat)
            assert told.fields["x-trunkline-replica"] == home
            receipt = self._front.receipt()
            assert receipt["predicted_cached_tokens"] == receipt["realised_cached_tokens"] == told.cached_tokens > 0

    def streams_say_the_same(self) -> None:
        chat = _chat("What do late readers do?")
        whole = ask(self._front.base, chat, max_tokens=24)
        body: dict[str, object] = {"model": MODEL, "messages": chat, "temperature": 0, "max_tokens": 24}
        with OpenStream(self._front.base, body, "/v1/chat/completions") as stream:
            data = (line.removeprefix(b"data: ") for line in stream.lines() if line.startswith(b"data: "))
            events = [json.loads(line) for line in takewhile(lambda line: line != b"[DONE]", data)]
        assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == whole.text
        assert not any(event.get("usage") for event in events)
        assert self._front.receipt()["output_tokens"] == whole.usage["completion_tokens"]

    def a_client_that_leaves_stops_its_engine(self) -> None:
        """FC-49."""
        chat = _chat("Tell me a very long story.")
        body: dict[str, object] = {"model": MODEL, "messages": chat, "max_tokens": 1500, "ignore_eos": True}
        with OpenStream(self._front.base, body, "/v1/chat/completions") as stream:
            stream.first_event()
            wait_for(lambda: sum(map(running, self._engines)) or None, "an engine to run it", _EVENTS_S)
        wait_for(lambda: not sum(map(running, self._engines)) or None, "the engine to stop", _STOPS_S)
        assert self._front.receipt()["outcome"] == "client_left"

    def a_killed_engine_is_gone_around_and_comes_back_empty(self) -> None:
        """FC-03, FC-43, FC-56."""
        victim, survivor = self._engines
        chat = [{"role": "user", "content": f"Both know this: {_RULES}"}]
        ask(victim.url, chat)
        ask(survivor.url, chat)
        wait_for(lambda: self._front.replica(victim.name)["healthy"] or None, "both to be up", _EVENTS_S)
        victim.kill()
        for _ in range(4):
            told = ask(self._front.base, chat)
            assert (told.status, told.fields["x-trunkline-replica"]) == (200, survivor.name)
        wait_for(lambda: not self._front.replica(victim.name)["healthy"] or None, "the loss to be seen", _BACK_S)
        victim.start()
        wait_for(lambda: self._front.replica(victim.name)["healthy"] or None, "it to be used again", _BACK_S)
        self._front.followed()
        ask(self._front.base, chat)
        credit = {row["replica"]: row["credit_tokens"] for row in self._front.receipt()["candidates"]}
        assert credit[victim.name] == 0 < credit[survivor.name]
        self.routed_by_events()


def run(folder: Path) -> list[dict[str, Any]]:
    """Install what is missing, start everything, run the checks; a row for each."""
    where = install()
    subprocess.run(trunkline("model", "fetch", "smollm2"), stdout=subprocess.DEVNULL, check=True)
    model = model_folder("smollm2")
    engines = [Vllm(name, where, model, folder) for name in ("v1", "v2")]
    with ExitStack() as stack:
        for engine in engines:  # two at once would starve each other on a small machine
            _say(f"starting {engine.name}")
            stack.callback(engine.stop)
            engine.start()
        front = Front(engines, model, folder)
        stack.callback(front.process.stop)
        front.followed()
        checks = Checks(front, engines)
        names = [name for name in vars(Checks) if not name.startswith("_")]
        return [_row(name, getattr(checks, name)) for name in names]


def _row(name: str, check: Callable[[], None]) -> dict[str, Any]:
    began = time.monotonic()
    row: dict[str, Any] = {"check": name, "ok": True}
    try:
        check()
    except Exception as error:  # whatever goes wrong is the finding; the other checks still run
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
        row |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:500], "lines": lines}
    row["seconds"] = round(time.monotonic() - began, 1)
    _say(f"{name}: {'ok' if row['ok'] else row}")
    return row


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m tests.vllm`."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tlv") as folder:  # short: paths of sockets are bounded
        try:
            rows = run(Path(folder))
        except (CannotInstall, RuntimeError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    failed = [row["check"] for row in rows if not row["ok"]]
    sys.stdout.write(json.dumps({"ok": not failed, "failed": failed, "checks": rows}) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
