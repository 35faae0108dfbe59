"""The values table of helm/README.md is in step with values.yaml."""

from __future__ import annotations

import json
import re

import yaml

from tests.chart.rendering import FOLDER

ROW = re.compile(r"^\| `([^`]+)` \| `(.*?)` \| (\S.*) \|$")


def leaves(value: object, path: str = "") -> dict[str, str]:
    """Dotted path -> default as JSON; lists and empty mappings are leaves."""
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for key, part in value.items():
            found.update(leaves(part, f"{path}.{key}" if path else str(key)))
        return found
    return {path: json.dumps(value)}


def table() -> dict[str, str]:
    """Dotted path -> default as the README prints it; a repeated row is an error."""
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [match for line in lines if (match := ROW.match(line))]
    names = [row[1] for row in rows]
    assert len(names) == len(set(names))
    return {row[1]: row[2] for row in rows}


def test_the_table_names_every_value_with_its_default() -> None:
    values = yaml.safe_load((FOLDER / "values.yaml").read_text(encoding="utf-8"))
    assert table() == leaves(values)
