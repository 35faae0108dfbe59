"""Where models lie on disk."""

from __future__ import annotations

import os
from pathlib import Path

EMBEDDED = {"smollm2": "smollm2-135m-instruct"}  # names that need no path -> folder under models/


def cache_root() -> Path:
    """The folder for everything that can be fetched or built again: $TRUNKLINE_CACHE, else ~/.cache/trunkline."""
    configured = os.environ.get("TRUNKLINE_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "trunkline"


def model_folder(name_or_path: str) -> Path:
    """The Hugging Face folder of an embedded model's name, or the path itself; whether it exists is not looked at."""
    embedded = EMBEDDED.get(name_or_path)
    if embedded is not None:
        return cache_root() / "models" / embedded
    return Path(name_or_path).expanduser()
