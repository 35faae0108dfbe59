"""Virtual environments of other people's programs: one for each, made when it is first needed, kept in the user's cache folder.

Nothing of theirs ever becomes a dependency of ours, and none of their versions has to agree with another's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.tokenize.folder import cache_root

_STAMP = "installed.txt"


class CannotInstall(Exception):
    """The environment could not be made; the text says which, and what pip said last."""


def environment(
    name: str, packages: Sequence[str], *, finish: Callable[[Path], None] = lambda folder: None, say: Callable[[str], None]
) -> Path:
    """The folder of a virtual environment that has these packages; raises CannotInstall.

    packages: with their versions; other ones than it has make it anew in place. finish: what is left to do after pip.
    """
    folder = cache_root() / "environments" / name
    stamp = folder / _STAMP
    wanted = "\n".join([sys.version.split()[0], *packages])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    say(f"making the environment {folder} with {', '.join(packages)}")
    stamp.unlink(missing_ok=True)
    _run(name, [sys.executable, "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    _run(name, [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    finish(folder)
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def _run(name: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise CannotInstall(f"{name} can not be installed here ({' '.join(command[1:4])} ended with {done.returncode}):\n{said}")
