"""What the commands of this room share: values that are refused by name, which typer does not do, and how they end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from replicas.errors import EngineDied, ReplicaError

_LEVELS = ("debug", "info", "warning", "error")


def endpoint(text: str) -> str:
    """A ZMQ endpoint as it was given."""
    if not re.fullmatch(r"tcp://([^:\[\]]+|\[[^\]]+\]):(\d+|\*)|(ipc|inproc)://.+", text):
        raise typer.BadParameter(f"{text!r} is not an endpoint such as tcp://*:5557")
    return text


def level(text: str) -> str:
    """A name of a log level."""
    if text not in _LEVELS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(_LEVELS)}")
    return text


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers that names what it refuses; typer's own does not."""
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    # 18 digits: what every part below can still count with

    def number(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", str(text)) or int(text) < least or (most is not None and int(text) > most):
            raise typer.BadParameter(f"{text!r:.40} is not a whole number {limits}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """A number of seconds, without a sign."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", str(text)):
        raise typer.BadParameter(f"{text!r:.40} is not a number of seconds")
    return float(text)


@contextmanager
def exit_status(host: str, port: int) -> Iterator[None]:
    """Turn what ends a server into a complaint and an exit status: 1 when its engine died, 2 for wrong use."""
    try:
        yield
    except EngineDied as error:  # whoever watches over the process should start it again
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    except ReplicaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        typer.echo(f"error: --host {host} --port {port}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from error
