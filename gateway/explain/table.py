"""An explanation as text for people: what the request is, what each replica would cost, what each policy would do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from gateway.explain.row import Row

_WHY_NOT = {"model": "does not serve the model", "draining": "is being removed", "down": "is down"}


def report(row: Row) -> Iterator[RenderableType]:
    """The parts of the answer from top to bottom, from its JSON."""
    yield _request_line(row)
    if row["refused"] is not None:
        yield f"It would be refused: {row['refused']['status']}, {row['refused']['message']}."
    if row["candidates"]:
        yield ""
        yield _candidates(row)
        yield from _not_eligible(row)
    decision = row["decision"]
    if decision is not None:
        yield ""
        yield (
            f"Chosen by {row['policy']}: {_name(decision)}, because {decision['meaning']} ({decision['reason']}). "
            f"Cached tokens expected: {decision['predicted_cached_tokens']}."
        )
    if row["policies"] and row["candidates"]:
        yield ""
        yield _policies(row)


def _request_line(row: Row) -> str:
    namespace = row["namespace"] or {}
    apart = [f"adapter {namespace['adapter']}"] if namespace.get("adapter") else []
    apart += ["with a cache salt"] if namespace.get("salted") else []
    apart += [f"with {namespace['images']} images"] if namespace.get("images") else []
    tokens = f"{row['tokens']} tokens" if row["tokens"] is not None else f"no token ids ({row['no_tokens_reason']})"
    session = ", in a session" if row["session"] else ""
    return f"{row['kind']} for model {row['model'] or '?'}: {', '.join([tokens, *apart])}{session}"


def _candidates(row: Row) -> Table:
    """Seconds; a price is the sum of the four columns behind it."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "replica", "price s", "= wait", "+ prefill", "+ moving", "+ drag"):
        table.add_column(name, justify="left" if name in ("", "replica") else "right", no_wrap=True)
    for name in ("cached", "of it believed", "by tier", "view", "trust", "open", "tokens/s"):
        table.add_column(name, justify="right" if name in ("cached", "open", "tokens/s", "trust") else "left", no_wrap=True)
    rows = [one for one in row["candidates"] if one["not_eligible"] is None]
    for one in sorted(rows, key=lambda one: float(one["price_s"])):
        seconds = [f"{one[name]:.4f}" for name in ("price_s", "wait_s", "prefill_s", "moving_s", "drag_s")]
        view = one["freshness"] + (", a guess" if one["guessed"] else "")
        table.add_row(
            "->" if one["chosen"] else "",
            _name(one),
            *seconds,
            str(one["credit_tokens"]),
            f"{one['confidence']:.0%}" if one["credit_tokens"] else "",
            _tiers(one["matched_tokens"]),
            view,
            f"{one['trust']:.2f}",
            str(one["in_flight"]),
            f"{one['prefill_tokens_per_s']:,.0f}",
        )
    return table


def _tiers(matched: dict[str, int]) -> str:
    """Tokens per tier, beyond what faster tiers have."""
    parts, below = [], 0
    for tier, tokens in matched.items():
        if tokens > below:
            parts.append(f"{tier} {tokens - below}")
            below = tokens
    return ", ".join(parts)


def _not_eligible(row: Row) -> Iterator[str]:
    for one in row["candidates"]:
        if one["not_eligible"] is not None:
            detail = f": {one['detail']}" if one["detail"] else ""
            yield f"not eligible: {_name(one)} {_WHY_NOT[one['not_eligible']]}{detail}"


def _policies(row: Row) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("policy", "would choose", "reason", "cached", "price s"):
        table.add_column(name, justify="right" if name in ("cached", "price s") else "left", no_wrap=name != "reason")
    for one in row["policies"]:
        if one["replica"] is None:
            table.add_row(one["policy"], "", one["why_not"], "", "")
        else:
            table.add_row(one["policy"], _name(one), one["reason"], str(one["credit_tokens"]), f"{one['price_s']:.4f}")
    return table


def _name(row: Row) -> str:
    return str(row["replica"]) + (f"/{row['rank']}" if row["rank"] else "")
