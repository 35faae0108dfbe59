"""How long things may take on an event stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """How long the parts of a stream may take."""

    settle_s: float = 0.1  # from a connection to its subscription being in force
    replay_timeout_s: float = 5.0  # between two replies
    retry_replay_s: float = 15.0  # after a replay that was not answered
    confirm_s: float = 5.0  # from a connection on which nothing came to the question for what was missed meanwhile
    silence_grace_s: float = 60.0
    link_down_s: float = 10.0  # without a connection; what we believe then may be long gone
    backoff_s: float = 0.5  # after a crash, doubled each time
    max_backoff_s: float = 30.0
    warn_every_s: float = 30.0
