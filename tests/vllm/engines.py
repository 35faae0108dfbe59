"""Two vLLM servers of its CPU build, from an environment of their own, with KV events over sockets in a folder.

Where the recipe is odd: the extra torch packages that come along do not fit the CPU build of torch; the command asks for the
metadata of a distribution called `vllm`, which this build is not; blocks have to be multiples of 32 tokens.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.demo.processes import Process, free_ports
from benchmarks.environments import CannotInstall, environment
from gateway.tokenize.folder import cache_root

VERSION = "0.32.0"
MODEL = "m"
BLOCK_TOKENS = 32
_DISK_BYTES = 6 * 2**30
_READY_S = 600.0
_UNFITTING = ("torchvision", "torchaudio", "torchcodec")
_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONHASHSEED": "0",
}


def install() -> Path:
    """The environment's folder; raises CannotInstall, also where the disk is too full for it."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    there = (root / "environments" / "vllm").exists()
    free = shutil.disk_usage(root).free
    if not there and free < _DISK_BYTES:
        raise CannotInstall(f"vllm needs {_DISK_BYTES / 2**30:.0f} GiB below {root}, {free / 2**30:.1f} GiB are free")
    if not there:
        sys.stderr.write("vLLM's CPU build takes about 15 minutes to install\n")
    return environment("vllm", [f"vllm-cpu=={VERSION}"], finish=_finish, say=_say)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _finish(folder: Path) -> None:
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *_UNFITTING], check=True)
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], stdout=subprocess.PIPE, text=True, check=True
    )
    stub = Path(packages.stdout.strip()) / f"vllm-{VERSION}+cpu.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")
    (stub / "RECORD").write_text("", encoding="utf-8")


class Vllm:
    """One server at a fixed place, which may be killed and started again."""

    def __init__(self, name: str, environment_folder: Path, model: Path, folder: Path) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.events = f"ipc://{folder}/{name}.ev"
        self.replay = f"ipc://{folder}/{name}.rp"
        self._command = self._serve(environment_folder, model)
        self._folder = folder
        self._process: Process | None = None

    def start(self) -> None:
        """Start it and wait until it answers; a minute or so."""
        log = self._folder / f"{self.name}-{time.monotonic_ns()}.log"
        self._process = Process(self.name, self._command, log, _ENV)
        deadline = time.monotonic() + _READY_S
        while not _answers(self.url):
            if _ended(self._process) or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"vLLM {self.name} did not come up:\n{tail}")
            time.sleep(1.0)

    def kill(self) -> None:
        """End it and the processes it started, as a crash of the machine would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stop()

    def stop(self) -> None:
        """End it in order, and what is left of it."""
        if self._process is not None:
            self._process.stop()
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _serve(self, environment_folder: Path, model: Path) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "topic": "kv-events",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
        }
        return [
            *(str(environment_folder / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--max-model-len", "2048"),
            *("--max-num-seqs", "8", "--block-size", str(BLOCK_TOKENS), "--enforce-eager", "--enable-prefix-caching"),
            *("--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)),
        ]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _ended(process: Process) -> bool:
    try:
        process.wait(0.0)
    except subprocess.TimeoutExpired:
        return False
    return True
