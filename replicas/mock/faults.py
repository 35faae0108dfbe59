"""What goes wrong on command, how often and how many times: `NAME[:VALUE][@RATE][xTIMES]` or the same as JSON."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from replicas.errors import BadRequest, brief


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. unit: of its value, '' where it takes none."""

    default: float
    unit: str
    help: str


KINDS: Mapping[str, Kind] = {
    "error": Kind(500, "status", "answer requests with this status"),
    "busy": Kind(1, "s", "answer 429 with Retry-After of so many seconds"),
    "reset": Kind(0, "", "reset the connection instead of an answer"),
    "hang": Kind(0, "", "never answer"),
    "slow_first_byte": Kind(1, "s", "wait before a request begins"),
    "cut": Kind(3, "chunks", "reset the connection after so many chunks of an answer"),
    "end_early": Kind(3, "chunks", "end the answer in order after so many chunks, without its end mark"),
    "deaf": Kind(4, "s", "notice only so late that a client has left"),
    "slow_health": Kind(5, "s", "wait before /health answers"),
    "sick": Kind(503, "status", "answer /health with this status"),
    "silent": Kind(0, "", "send no event, while the cache goes on"),
    "lose": Kind(0, "", "lose event batches on the way; a replay has them"),
    "skip": Kind(0, "", "use up numbers of event batches that nobody ever gets"),
    "duplicate": Kind(0, "", "send event batches twice"),
    "reorder": Kind(0, "", "send an event batch behind the one after it"),
}
_FLAG = re.compile(r"(?P<name>[a-z_]+)(:(?P<value>\d+(\.\d+)?))?(@(?P<rate>\d(\.\d+)?))?(x(?P<times>\d+))?")
_FIELDS = {"value", "rate", "times", "rank"}


@dataclass(slots=True)
class Fault:
    """One fault that is on. rate: of the chances it gets, 0..1. times: hits left, None for no end. rank: None for all."""

    value: float
    rate: float = 1.0
    times: int | None = None
    rank: int | None = None


class Faults:
    """The faults that are on, and how often each has hit. seed: the same seed and the same calls give the same hits."""

    def __init__(self, seed: int = 0) -> None:
        self.hits: Counter[str] = Counter()
        self._on: dict[str, Fault] = {}
        self._random = random.Random(seed)

    def set(self, name: str, fault: Fault | None) -> None:
        """Switch a fault on, in place of what it was, or off; raises BadRequest naming what is wrong."""
        if name not in KINDS:
            raise BadRequest(f"fault {brief(name)} is not one of {', '.join(KINDS)}", "name")
        self._on.pop(name, None)
        if fault is None:
            return
        if not 0 <= fault.rate <= 1:
            raise BadRequest(f"fault {name}: rate must be within 0..1, got {fault.rate}", "rate")
        if KINDS[name].unit == "status" and not 400 <= fault.value <= 599:
            raise BadRequest(f"fault {name}: value must be a status of 400..599, got {fault.value:g}", "value")
        self._on[name] = fault

    def clear(self) -> None:
        """Switch all of them off."""
        self._on.clear()

    def hit(self, name: str, rank: int | None = None) -> float | None:
        """The fault's value when it strikes now, else None."""
        fault = self._on.get(name)
        if fault is None or (fault.rank is not None and fault.rank != rank):
            return None
        if fault.rate < 1 and self._random.random() >= fault.rate:
            return None
        if fault.times is not None:
            fault.times -= 1
            if fault.times <= 0:
                del self._on[name]
        self.hits[name] += 1
        return fault.value

    def shown(self) -> dict[str, object]:
        """What is on, as the control endpoint tells it."""
        return {name: asdict(fault) for name, fault in self._on.items()}


def fault_of_flag(text: str) -> tuple[str, Fault]:
    """'cut:3@0.1' or 'error:503x2' as a name and its fault; raises BadRequest."""
    found = _FLAG.fullmatch(text)
    if found is None or found["name"] not in KINDS:
        raise BadRequest(f"{text!r:.60} is not NAME[:VALUE][@RATE][xTIMES] with a name of {', '.join(KINDS)}", "fault")
    value = KINDS[found["name"]].default if found["value"] is None else float(found["value"])
    times = None if found["times"] is None else int(found["times"])
    return found["name"], Fault(value, float(found["rate"] or 1), times)


def fault_of_json(name: str, given: object) -> Fault | None:
    """The value behind a name in the control endpoint's body: null, true, or an object; raises BadRequest."""
    if given is None or given is False:
        return None
    default = KINDS[name].default if name in KINDS else 0.0
    if given is True:
        return Fault(default)
    if not isinstance(given, dict) or given.keys() - _FIELDS:
        raise BadRequest(f"fault {brief(name)}: want null, true or an object of {', '.join(sorted(_FIELDS))}", "value")
    for key, value in given.items():
        right = isinstance(value, int) if key in ("times", "rank") else isinstance(value, int | float)
        if value is not None and (isinstance(value, bool) or not right):
            raise BadRequest(f"fault {brief(name)}: {key} must be a number, got {brief(value)}", key)
    values = {key: value for key, value in given.items() if value is not None}
    return Fault(**{"value": default, **values})
