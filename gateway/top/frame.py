"""One frame of the live view, as plain data: figures per rank and in total over the last moments. No clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def frame_of(status: Row, receipts: Sequence[Row], *, window_s: float, limit: int) -> Row:
    """status: of the control plane; receipts: the newest first, at most `limit` of them. Rates are per second of `window_s`.

    Where the receipts do not reach back that far the window is as long as they do.
    """
    now = float(status["at"])
    recent = [one for one in receipts if one["at"] > now - window_s]
    if len(recent) == len(receipts) == limit:
        window_s = max(now - recent[-1]["at"], 1e-3)
    of_rank: dict[tuple[str, int], list[Row]] = {}
    for one in recent:
        of_rank.setdefault((one["replica"], one["rank"]), []).append(one)
    rows = [
        {**_state(replica, rank), **_figures(of_rank.get((replica["name"], rank["rank"]), []), window_s)}
        for replica in status["replicas"]
        for rank in replica["ranks"]
    ]
    return {
        "at": now,
        "window_s": window_s,
        "policy": status["policy"],
        "tokenizer": status["tokenizer"],
        "ranks": rows,
        "total": {
            "in_flight": sum(row["in_flight"] for row in rows),
            "queued_tokens": sum(row["queued_tokens"] for row in rows),
            "decoding": sum(row["decoding"] for row in rows),
            **_figures(recent, window_s),
        },
    }


def _state(replica: Row, rank: Row) -> Row:
    """What is true now."""
    state = "draining" if replica["draining"] else ("up" if replica["healthy"] else "down")
    names = ("rank", "in_flight", "queued_tokens", "decoding", "trust", "freshness", "prefill_tokens_per_s")
    return {"replica": replica["name"], "state": state, **{name: rank[name] for name in names}}


def _figures(receipts: Sequence[Row], window_s: float) -> Row:
    """What the requests that ended in the window say; None where none of them says it."""
    both = [one for one in receipts if one["realised_cached_tokens"] is not None and one["prompt_tokens"]]
    prompt = sum(one["prompt_tokens"] for one in both)
    ttft = sorted(one["ttft_s"] for one in receipts if one["ttft_s"] is not None)
    reasons = Counter(one["reason"] for one in receipts)
    return {
        "requests_per_s": len(receipts) / window_s,
        "output_tokens_per_s": sum(one["output_tokens"] or 0 for one in receipts) / window_s,
        "prompt_tokens_per_s": sum(one["engine_prompt_tokens"] or 0 for one in receipts) / window_s,
        "predicted_share": sum(one["predicted_cached_tokens"] for one in both) / prompt if prompt else None,
        "realised_share": sum(one["realised_cached_tokens"] for one in both) / prompt if prompt else None,
        "ttft_p50_s": _quantile(ttft, 0.5),
        "ttft_p99_s": _quantile(ttft, 0.99),
        "failed_share": sum(one["outcome"] not in ("ok", "client_left") for one in receipts) / len(receipts)
        if receipts
        else None,
        "reasons": {reason: count / len(receipts) for reason, count in reasons.most_common()},
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the sorted values do not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None
