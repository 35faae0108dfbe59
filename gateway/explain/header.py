"""The candidates of one decision in a header field of bounded length, cheapest first."""

from __future__ import annotations

import math

from gateway.request import Ticket

_MOST_BYTES = 1000  # clients and proxies bound the whole head; 8 KiB is common


def candidates_line(ticket: Ticket) -> str:
    """`r1;price=0.332;cached=800, r0;rank=1;price=0.520;cached=1104, +6`: seconds and tokens, and how many did not fit.

    Policies that do not price give no price.
    """
    candidates = sorted(ticket.decision.candidates, key=lambda one: math.inf if math.isnan(one.price_s) else one.price_s)
    parts: list[str] = []
    size = 0
    for number, one in enumerate(candidates):
        name, rank = ticket.owner(one.holder)
        part = name + (f";rank={rank}" if rank else "")
        part += "" if math.isnan(one.price_s) else f";price={one.price_s:.3f}"
        part += f";cached={one.credit_tokens}"
        size += len(part) + 2
        if size > _MOST_BYTES:
            parts.append(f"+{len(candidates) - number}")
            break
        parts.append(part)
    return ", ".join(parts)
