"""The simulator's one root error and its kinds."""

from __future__ import annotations


class SimulationError(Exception):
    """Root of what can go wrong in a simulation; the text names the value."""


class TraceError(SimulationError):
    """A trace cannot be read; the text names the file, the line, the field and the value."""


class SettingError(SimulationError):
    """A setting of the fleet, the engine or the run is wrong, or an optional package it needs is missing."""
