"""Which blocks an answer filled: an engine keeps what it generates, and a chat's next turn brings it back as part of its prompt.

A trace names the blocks of prompts only. Those of an answer are found in the follow-up: the first request that arrives after the
answer was complete, goes on where the prompt ended, and, where sessions are named, belongs to the same one. Only recordings say
when an answer was complete; in other traces answers stay unknown.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulations.traces.columns import Float64Array, Trace


def find_answers(trace: Trace, took_s: Float64Array) -> Trace:
    """The trace with `answer_starts` and `answer_blocks`; itself where no row says how long it took.

    took_s: float64 [requests], from arrival to the end of the answer, NaN where it is not known.
    """
    if np.isnan(took_s).all():
        return trace
    size = trace.block_tokens
    ended_s = (trace.arrival_s + took_s).tolist()
    arrival_s: list[float] = trace.arrival_s.tolist()
    full: list[int] = (trace.input_tokens // size).tolist()
    filled: list[int] = ((trace.input_tokens + trace.output_tokens - 1) // size).tolist()  # the last token's KV is never made
    sessions: list[int] = trace.sessions.tolist() if trace.sessions is not None else [-1] * len(trace)
    offsets: list[int] = trace.block_offsets.tolist()
    ids: list[int] = trace.block_ids.tolist()
    starts, counts = np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    open_at: dict[int, list[int]] = {}  # id of a prompt's last full block -> requests whose answer is not found yet
    for request in range(len(trace)):
        begin = offsets[request]
        for position in range(full[request] - 1):  # behind the last one there is nothing to find
            waiting = open_at.get(ids[begin + position])
            for earlier in list(waiting or ()):
                if ended_s[earlier] > arrival_s[request] or sessions[earlier] != sessions[request]:
                    continue
                assert waiting is not None
                waiting.remove(earlier)
                starts[earlier] = begin + full[earlier]
                counts[earlier] = min(filled[earlier], full[request]) - full[earlier]
        if full[request] and filled[request] > full[request] and not np.isnan(took_s[request]):
            open_at.setdefault(ids[begin + full[request] - 1], []).append(request)
    return replace(trace, answer_starts=starts, answer_blocks=counts)
