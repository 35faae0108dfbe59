"""The one root error of the engine and its kinds."""

from __future__ import annotations


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


class StepFailed(ReplicaError):
    """The step that computed a request failed; the request is over, the engine goes on."""
