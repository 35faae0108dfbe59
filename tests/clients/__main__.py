"""The official `openai` and `anthropic` clients and `aiperf` against a gateway and fake engines: `make clients`.

    python -m tests.clients                      # all three
    python -m tests.clients openai anthropic     # some

Each client is installed into an environment of its own when it is first needed (openai 71 MB, anthropic 79 MB, aiperf 1.2 GB).
The last line of stdout is one JSON object; exit status 1 when a check failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.demo.processes import trunkline
from benchmarks.environments import CannotInstall, environment
from gateway.tokenize.folder import model_folder
from replicas.mock.tokens import write_tokenizer
from tests.clients import with_aiperf
from tests.fakes.mock_engines import Engines, Gateway

PACKAGES = {"openai": "openai==3.57.0", "anthropic": "anthropic==2.14.0", "aiperf": "aiperf==0.13.0"}
MODEL, SLOW_MODEL, KEY = "mock", "slow", "sk-clients"
_HERE = Path(__file__).parent
_SCRIPT_S = 300.0


def run(names: Sequence[str], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each client's checks."""
    environments = {name: environment(name, [PACKAGES[name]], say=_say) for name in names}
    if "aiperf" in names:
        subprocess.run(trunkline("model", "fetch", "smollm2"), stdout=subprocess.DEVNULL, check=True)
    write_tokenizer(folder / "tokenizer")
    keys = folder / "keys"
    keys.write_text(f"clients:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    speed = ("--prefill-rate", "1000000", "--decode-s", "0.005", "--sequence-s", "0.0001", "--num-blocks", "16384")
    with ExitStack() as stack:
        fast = Engines(folder / "fast.log", "--count", "2", "--model", MODEL, *speed)
        stack.callback(fast.stop)
        slow = Engines(folder / "slow.log", "--model", SLOW_MODEL, "--answer-tokens", "4000", *speed)
        stack.callback(slow.stop)
        urls = [fast.ready().url(0), fast.url(1), slow.ready().url()]
        replicas = [(f"e{number}", url) for number, url in enumerate(urls)]
        gateway = Gateway(folder, folder / "tokenizer", replicas, api_keys_file=str(keys))
        stack.callback(gateway.process.stop)
        gateway.ready()
        return {name: list(_rows(name, where, gateway.base, urls, folder)) for name, where in environments.items()}


def _rows(name: str, where: Path, base: str, engines: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    if name == "aiperf":
        rows = with_aiperf.checks(where, base, KEY, MODEL, model_folder("smollm2"), folder)
    else:
        rows = _script(where, _HERE / f"with_{name}.py", base, engines)
    for row in rows:
        _say(f"{name} {row['check']}: {'ok' if row['ok'] else row}")
        yield row


def _script(where: Path, script: Path, base: str, engines: list[str]) -> Iterator[dict[str, Any]]:
    """Run a client's script in its environment; a row for each line it prints, and one more where it breaks off."""
    setting = {"base": base, "key": KEY, "model": MODEL, "slow_model": SLOW_MODEL, "engines": engines}
    command = [str(where / "bin" / "python"), str(script), json.dumps(setting)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SCRIPT_S, check=False)
    for line in done.stdout.splitlines():
        yield json.loads(line)
    if done.returncode not in (0, 1) or not done.stdout:
        yield {"check": "the script itself", "ok": False, "error": done.stderr[-800:]}


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m tests.clients`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", choices=[*PACKAGES, []], help="default: all")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(args.clients or list(PACKAGES), Path(folder))
        except CannotInstall as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    failed = [f"{name} {row['check']}" for name, rows in found.items() for row in rows if not row["ok"]]
    sys.stdout.write(json.dumps({"ok": not failed, "failed": failed, "packages": PACKAGES, "checks": found}) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
