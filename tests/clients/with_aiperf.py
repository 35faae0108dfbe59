"""`aiperf`, the load generator of the Dynamo project, with a recorded trace and with a fixed number of clients.

It takes a tokenizer only from a hub cache; one is laid out by hand, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

_NAME, _REPOSITORY = "local/smollm2", "models--local--smollm2"
_REVISION = "0123456789abcdef0123456789abcdef01234567"
_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")
_ROWS, _SPACING_MS = 40, 150
_BLOCK_TOKENS = 512
_PATIENCE_S = 300.0


def lay_out_hub(model: Path, folder: Path) -> Path:
    """A hub cache that holds the tokenizer of a model folder under a name of its own; returns what HF_HOME is to be."""
    repository = folder / "hub" / _REPOSITORY
    snapshot = repository / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(_REVISION, encoding="ascii")
    for name in _FILES:
        (snapshot / name).write_bytes((model / name).read_bytes())
    return folder


def write_trace(path: Path, seed: int = 1) -> None:
    """Forty requests in the form of Mooncake's traces: equal ids are equal text, and a few starts are shared."""
    chance = Random(seed)
    with path.open("w", encoding="utf-8") as lines:
        for row in range(_ROWS):
            blocks = chance.randint(2, 4)  # the last one is seldom full, and so never shared
            ids = [chance.randrange(3), *(100 + 10 * row + block for block in range(1, blocks))]
            size = _BLOCK_TOKENS * (blocks - 1) + chance.randint(1, _BLOCK_TOKENS)
            fields = {
                "timestamp": row * _SPACING_MS,
                "input_length": size,
                "output_length": chance.randint(4, 24),
                "hash_ids": ids,
            }
            lines.write(json.dumps(fields) + "\n")


def checks(environment: Path, base: str, key: str, model_name: str, tokenizer: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Run it twice; one row for each."""
    trace = folder / "trace.jsonl"
    write_trace(trace)
    hub = lay_out_hub(tokenizer, folder / "hf")
    common = [
        "--model",
        model_name,
        "--tokenizer",
        _NAME,
        "--url",
        base,
        "--api-key",
        key,
        "--endpoint-type",
        "chat",
        "--ui",
        "none",
    ]
    common += ["--extra-inputs", "ignore_eos:true"]
    trace_options = ["--input-file", str(trace), "--custom-dataset-type", "mooncake_trace"]
    runs = {
        "trace_on_schedule": ["--streaming", *trace_options, "--fixed-schedule"],
        "eight_at_once": [
            *("--streaming", *trace_options, "--no-fixed-schedule", "--concurrency", "8"),
            *("--request-count", str(_ROWS), "--use-server-token-count"),
        ],
    }
    for name, options in runs.items():
        artifacts = folder / name
        command = [str(environment / "bin" / "aiperf"), "profile", *common, *options, "--output-artifact-dir", str(artifacts)]
        yield {"check": name, **_run(command, hub, artifacts, folder)}


def _run(command: list[str], hub: Path, artifacts: Path, folder: Path) -> dict[str, Any]:
    env = {**os.environ, "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    log = folder / f"{artifacts.name}.log"
    with log.open("wb") as stream:
        try:
            status = subprocess.run(command, env=env, stdout=stream, stderr=stream, cwd=folder, timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"not done within {_PATIENCE_S:.0f} s"}
    found = sorted(artifacts.rglob("profile_export_aiperf.json"))
    if status.returncode or not found:
        tail = " | ".join(log.read_text(errors="replace").splitlines()[-5:])
        return {"ok": False, "error": f"status {status.returncode}: {tail}"[-800:]}
    report = json.loads(found[0].read_text(encoding="utf-8"))
    answered, errors = report["request_count"]["avg"], report["error_summary"]
    return {"ok": answered == _ROWS and not errors, "answered": answered, "errors": errors[:3]}
