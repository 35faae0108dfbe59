"""The one root error of the engine and its kinds."""

from __future__ import annotations

import reprlib
from itertools import islice


class ReplicaError(Exception):
    """Root of what can go wrong in a replica; the text names the value."""


class ModelError(ReplicaError):
    """A model folder can not be fetched, converted or loaded."""


class BadRequest(ReplicaError):
    """A request the engine refuses with 400; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineStopped(ReplicaError):
    """The engine is shutting down and takes or finishes nothing more."""


class EngineDied(EngineStopped):
    """The engine's thread ended by a fault; the process has to end and be started again."""


class UnknownModel(ReplicaError):
    """The request names a model that is not served here."""


class StepFailed(ReplicaError):
    """The step that computed a request failed; the request is over, the engine goes on."""


class _Brief(reprlib.Repr):
    """Short, and in a time that does not depend on the size of what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxlong = self.maxother = 60

    def repr_dict(self, x: dict[object, object], level: int) -> str:
        """Only the first few items; the standard one sorts all of them before it cuts."""
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


_BRIEF = _Brief()


def brief(value: object) -> str:
    """How a message shows a value that somebody sent: as Python writes it, cut to 80 characters."""
    return f"{_BRIEF.repr(value):.80}"
