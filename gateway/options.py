"""Command-line options over a YAML file: the same names, options win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.check import check_settings
from gateway.config import Settings, load_settings, parse_replica, settings_as_data, settings_from


def merged_settings(config: Path | None, replicas: Sequence[str], options: Mapping[str, Any]) -> Settings:
    """Settings from a file and options; dotted names reach into groups, None means not given.

    `replicas` given on the command line replace those of the file. Raises ConfigError naming the key and the value.
    """
    base = load_settings(config) if config else Settings()
    data = settings_as_data(base)
    if replicas:
        data["replicas"] = [settings_as_data(parse_replica(text)) for text in replicas]
    for name, value in options.items():
        if value is not None:
            *groups, key = name.split(".")
            place = data
            for group in groups:
                place[group] = place[group] or {}
                place = place[group]
            place[key] = value
    settings = settings_from(data, source="options")
    check_settings(settings)
    return settings
