"""JSON over HTTP for the demo's own errands; the chats themselves go through the official client."""

from __future__ import annotations

import urllib.request
from typing import Any

import orjson


def get_json(url: str, timeout_s: float = 5.0) -> Any:
    """The parsed answer of a GET; raises urllib.error.URLError."""
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        return orjson.loads(response.read())


def post_json(url: str, body: object = None, timeout_s: float = 120.0) -> Any:
    """The parsed answer of a POST; raises urllib.error.URLError, also for a status of 400 and above."""
    request = urllib.request.Request(url, data=orjson.dumps(body), headers={"content-type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return orjson.loads(response.read())
