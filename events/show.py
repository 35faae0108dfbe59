"""Messages as JSON and as lines to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from events.decode.announced import Announced, Message
from radix.changes import Cleared, Removed

Row = dict[str, object]


def row_of(message: Message) -> Row:
    """One message as `events decode` prints it."""
    return {
        "rank": message.rank,
        "error": None,
        "events": [event_row(event) for event in message.events],
        "skipped": message.skipped,
    }


def error_row(error: str) -> Row:
    """The same for bytes that are no message."""
    return {"rank": None, "error": error, "events": [], "skipped": 0}


def event_row(event: Announced | Removed | Cleared) -> Row:
    """One event. hashes: 16 hex digits each; tokens: None where the engine sent pairs or strings."""
    row: Row = dict.fromkeys(("type", "hashes", "parent", "tokens", "block_tokens", "adapter", "tier", "group"))
    match event:
        case Cleared():
            return row | {"type": "cleared", "hashes": []}
        case Removed():
            row |= {"type": "removed"}
        case Announced():
            row |= {
                "type": "stored",
                "parent": None if event.parent is None else f"{event.parent:016x}",
                "tokens": event.ids,
                "block_tokens": event.block_tokens,
                "adapter": _adapter_of(event.keys),
            }
    return row | {
        "hashes": [f"{value:016x}" for value in event.hashes],
        "tier": event.tier.name.lower(),
        "group": event.group,
    }


def text_of(message: Message) -> list[str]:
    """One line per event, for people."""
    return [_line_of(event) for event in message.events]


def _line_of(event: Announced | Removed | Cleared) -> str:
    match event:
        case Cleared():
            return "cleared"
        case Removed():
            return f"removed {_some(event.hashes)} {_where(event)}"
        case Announced():
            parent = "start" if event.parent is None else f"{event.parent:016x}"
            adapter = _adapter_of(event.keys)
            size = f"{len(event.hashes)}x{event.block_tokens} tokens"
            return f"stored  {_some(event.hashes)} {_where(event)} {size} after {parent}" + (
                f" adapter {adapter}" if adapter else ""
            )


def _some(hashes: Sequence[int]) -> str:
    shown = " ".join(f"{value:016x}" for value in hashes[:2])
    return shown if len(hashes) <= 2 else f"{shown} +{len(hashes) - 2}"


def _where(event: Announced | Removed) -> str:
    return event.tier.name.lower() + (f" group {event.group}" if event.group else "")


def _adapter_of(keys: Mapping[str, object]) -> str | None:
    name = keys.get("lora_name")
    return name if isinstance(name, str) and name else None
