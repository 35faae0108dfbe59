"""What the scripts of all clients share: named checks, one JSON line each, and a look at the engines.

It runs in the clients' own environments, which have nothing of this project's dependencies.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STOPS_WITHIN_S = 1.0
_PATIENCE_S = 20.0
STORY = "Tell me a story about a lighthouse keeper, and make it as long as you possibly can."


@dataclass
class Setting:
    """Where things are. slow_model: its answers take many seconds; engines: the URLs of all engines, to ask them themselves."""

    base: str
    key: str
    model: str
    slow_model: str
    engines: list[str] = field(default_factory=list)

    @classmethod
    def from_line(cls, text: str) -> Setting:
        """As the runner hands it over."""
        return cls(**json.loads(text))

    def open_requests(self) -> int:
        """What all engines work on."""
        total = 0
        for engine in self.engines:
            with urllib.request.urlopen(f"{engine}/mock/state", timeout=_PATIENCE_S) as answer:
                total += json.load(answer)["open_requests"]
        return total

    def runs(self) -> None:
        """Wait until an engine works on something."""
        _wait_for(lambda: self.open_requests() > 0, _PATIENCE_S, "no engine works on it")

    def stops(self) -> None:
        """Wait until no engine works on anything, which a client that left has to bring about at once (FC-49)."""
        _wait_for(lambda: self.open_requests() == 0, STOPS_WITHIN_S, "an engine goes on working")


def run(checks: dict[str, Callable[[], object]]) -> int:
    """Run them all, say how each went, and return the exit status."""
    failed = 0
    for name, check in checks.items():
        began = time.monotonic()
        row: dict[str, Any] = {"check": name, "ok": True}
        try:
            check()
        except Exception as error:  # whatever a client raises is the finding
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[1:2]
            row |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:500], "line": [frame.lineno for frame in where]}
        row["seconds"] = round(time.monotonic() - began, 2)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return int(failed > 0)


def raises(kind: type[Exception], call: Callable[[], object]) -> Any:
    """The error of that kind which the call has to raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def _wait_for(condition: Callable[[], bool], within_s: float, complaint: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{complaint} after {within_s:.0f} s")
        time.sleep(0.02)
