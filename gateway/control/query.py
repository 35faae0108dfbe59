"""Reading the parameters of the control plane's routes; what is wrong with one is said by name."""

from __future__ import annotations

import re

from aiohttp import web

from gateway.errors import GatewayError


class BadQuery(GatewayError):
    """A parameter cannot be used; `param` names it."""

    def __init__(self, message: str, param: str, status: int = 400) -> None:
        super().__init__(message)
        self.param = param[:80]
        self.status = status


def only(request: web.Request, *names: str) -> None:
    """Raises BadQuery for a parameter that is none of these."""
    if unknown := request.query.keys() - set(names):
        raise BadQuery(f"unknown parameter {min(unknown)!r:.80}", min(unknown))


def whole_number(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    """A number in `least`..`most`; raises BadQuery."""
    text = request.query.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise BadQuery(f"{name} must be {least}..{most}, got {text!r:.80}", name)
    return int(text)


def switch(request: web.Request, name: str) -> bool:
    """0 or 1, off unless given; raises BadQuery."""
    return whole_number(request, name, 0, least=0, most=1) == 1
