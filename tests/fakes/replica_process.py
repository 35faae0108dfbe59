"""A replica in its own process, started the way `trunkline replica` starts one, with the fake model instead of a real one.

Run as `python -m tests.fakes.replica_process FOLDER [name=value ...]`: a tokenizer folder, then fields of `ServeSettings`, and
`step_s`, how long each step of the fake model takes, and `die_at_step`, the step that ends the engine's thread. Prints one JSON
line when it takes requests.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 272  # of tests.fakes.tokenizer_folder


def main(argv: Sequence[str]) -> None:
    """The child's side."""
    from gateway.tokenize.prompt import Tokenizer
    from replicas.serve import ServeSettings, serve
    from tests.fakes.runner import FakeRunner

    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(levelname)s %(name)s %(message)s")
    options: dict[str, object] = {}
    for argument in argv[1:]:
        name, _, value = argument.partition("=")
        options[name] = json.loads(value)
    step_s = float(options.pop("step_s", 0.0))  # type: ignore[arg-type]
    runner = FakeRunner(vocab_size=VOCABULARY)
    die_at_step = options.pop("die_at_step", None)

    def before_step(slices: object) -> None:
        time.sleep(step_s)
        if len(runner.steps) == die_at_step:
            raise SystemExit("told to")

    runner.before_step = before_step
    settings = ServeSettings(model_name="fake", host="127.0.0.1", port=0, **options)  # type: ignore[arg-type]

    def announce(ready: object) -> None:
        sys.stdout.write(json.dumps({name: getattr(ready, name) for name in ("port", "events", "replay")}) + "\n")
        sys.stdout.flush()

    serve(settings, runner, Tokenizer.load(Path(argv[0])), announce)


class ReplicaProcess:
    """The test's side: the child, its port, its log."""

    def __init__(self, folder: Path, log: Path, **options: object) -> None:
        arguments = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        self._log = log
        with log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.replica_process", str(folder), *arguments],
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the replica did not start:\n{self.log()}"
        self.ready = json.loads(line)
        self.port = int(self.ready["port"])
        self.url = f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """What the child wrote to stderr so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def metric(self, name: str) -> float:
        """One sample of the /metrics page, by its name and labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == f"trunkline_replica_{name}")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._child.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 10) -> int:
        """The exit status."""
        status = self._child.wait(timeout_s)
        assert self._child.stdout is not None
        self._child.stdout.close()
        return status

    def kill(self) -> None:
        """End it however it is."""
        if self._child.poll() is None:
            self._child.kill()
        self.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
