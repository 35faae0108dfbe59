"""How a fleet, its placer and a data plane hold together under load: limits per rank, and who is told when something changes."""

from __future__ import annotations

from gateway.config import Admission
from gateway.fleet import Fleet
from gateway.place import FleetPlacer
from gateway.plane import DataPlane


def protect(fleet: Fleet, placer: FleetPlacer, plane: DataPlane, settings: Admission) -> None:
    """Bound what a rank is given, wake those who wait, and let replicas that join begin slowly."""
    fleet.most_requests = settings.rank_requests
    fleet.most_queued_tokens = settings.rank_tokens
    fleet.on_change = plane.desk.wake
    fleet.on_joined = lambda replica: placer.guards.joined(replica, placer.clock())
