"""What a relay follows: one replica's event sockets, as given on its command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from events.endpoints import check_apart, is_queue, queue_url, rank_endpoint
from events.errors import EndpointError

_NAME = re.compile(r"[!-~]{1,200}")
_NUMBER = re.compile(r"[0-9]{1,6}")
_REPEATING = ("sglang", "trtllm")
_ENGINES = ("vllm", "trunkline", *_REPEATING)


@dataclass(frozen=True, slots=True)
class Target:
    """One replica. name: the one gateways know it by. events, replay: of rank 0; rank r is at port + r.

    repeats_stores: its events name a block again without a further copy (SGLang, TensorRT-LLM). events may be a queue to poll.
    """

    name: str
    events: str
    replay: str | None = None
    ranks: int = 1
    topic: str = ""
    repeats_stores: bool = False
    block_tokens: int = 0


def parse_target(text: str) -> Target:
    """`NAME=EVENTS[,REPLAY][,ranks=N][,topic=T][,engine=E]`; raises EndpointError naming the part that is wrong."""
    name, separator, rest = text.partition("=")
    if not separator or not _NAME.fullmatch(name):
        raise EndpointError(f"--replica {text!r}: want NAME=EVENTS[,REPLAY]")
    events, *more = rest.split(",")
    target = Target(name, events, repeats_stores=is_queue(events))
    for place, option in enumerate(more):
        key, separator, value = option.partition("=")
        if not place and "://" in key:
            target = replace(target, replay=option)
        elif separator:
            target = _with(target, key, value)
        else:
            raise EndpointError(f"--replica {name}: {option!r} is not key=value")
    _check(target)
    return target


def _with(target: Target, key: str, value: str) -> Target:
    match key:
        case "ranks" | "block_tokens" if _NUMBER.fullmatch(value) and (int(value) or key == "block_tokens"):
            return replace(target, ranks=int(value)) if key == "ranks" else replace(target, block_tokens=int(value))
        case "topic":
            return replace(target, topic=value)
        case "engine" if value in _ENGINES:
            return replace(target, repeats_stores=value in _REPEATING)
        case "engine":
            raise EndpointError(f"--replica {target.name}: engine must be one of {', '.join(_ENGINES)}, got {value!r}")
        case "ranks" | "block_tokens":
            raise EndpointError(f"--replica {target.name}: {key} must be a number, got {value!r}")
        case _:
            raise EndpointError(f"--replica {target.name}: unknown option {key!r}")


def _check(target: Target) -> None:
    if is_queue(target.events):
        queue_url(target.events)
        if target.replay is not None:
            raise EndpointError(f"--replica {target.name}: a queue that is polled has no replay, got {target.replay!r}")
        return
    for endpoint in (target.events, target.replay):
        if endpoint is None:
            continue
        if "*" in endpoint and not endpoint.startswith("bind+"):
            raise EndpointError(f"--replica {target.name}: {endpoint!r} names no host")
        try:
            rank_endpoint(endpoint, target.ranks - 1)
            if endpoint is target.replay:
                check_apart(target.events, endpoint, target.ranks)
        except EndpointError as error:
            raise EndpointError(f"--replica {target.name}: {error}") from None
