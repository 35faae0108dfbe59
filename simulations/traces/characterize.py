"""What a trace holds before any engine is modelled: the hit rate of one cache over the whole stream.

These are the golden numbers a reader is checked with, and the bound no policy can pass.
"""

from __future__ import annotations

from collections import OrderedDict

from simulations.traces.columns import Trace


def lru_hit_rate(trace: Trace, capacity_blocks: int | None = None) -> float:
    """Share of prompt tokens found in one block LRU in order of arrival; None = a cache without limit.

    Per request: count the leading run of known ids, then touch all ids from tail to head (so that tails go first), then evict.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for request, input_tokens in enumerate(trace.input_tokens.tolist()):
        ids = trace.ids(request).tolist()
        run = next((position for position, block in enumerate(ids) if block not in cache), len(ids))
        found += min(run * trace.block_tokens, input_tokens)
        for block in reversed(ids):
            cache[block] = None
            cache.move_to_end(block)
        while capacity_blocks is not None and len(cache) > capacity_blocks:
            cache.popitem(last=False)
    return found / int(trace.input_tokens.sum())
