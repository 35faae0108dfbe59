"""The columnar form every trace reader ends in: one array per field, block ids flat with offsets.

Block ids are chained: two requests that carry the same id have the same prompt up to and including that block. That is what
makes a cache over ids exact, and `first_broken_chain` finds where a file breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulations.errors import TraceError

Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order they arrive.

    arrival_s: float64 [requests], never falling. input_tokens, output_tokens: int64 [requests], at least 1.
    block_ids: int64 [blocks of all requests]; those of request r are `block_ids[block_offsets[r]:block_offsets[r + 1]]`, the
    last one partial where input_tokens is no multiple of block_tokens. digest: sha256 of the file's uncompressed bytes.
    notes: what was done to the recorded values since, in words for the report.

    Where a file says more: sessions, int64 [requests], a number per session and -1 without one; answer_starts and answer_blocks,
    int64 [requests]: the blocks that a request's answer filled are `block_ids[start:start + blocks]`, as the follow-up that
    brings the answer back names them (`answers.py`).
    """

    name: str
    digest: str
    block_tokens: int
    arrival_s: Float64Array
    input_tokens: Int64Array
    output_tokens: Int64Array
    block_ids: Int64Array
    block_offsets: Int64Array
    sessions: Int64Array | None = None
    answer_starts: Int64Array | None = None
    answer_blocks: Int64Array | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    def ids(self, request: int) -> Int64Array:
        """The block ids of one request's prompt, int64 [blocks]."""
        return self.block_ids[self.block_offsets[request] : self.block_offsets[request + 1]]

    def dense_ids(self) -> Int32Array:
        """All block ids renumbered from 0 in order of value, int32 [blocks of all requests]: the form the index takes."""
        _, dense = np.unique(self.block_ids, return_inverse=True)
        return np.ascontiguousarray(dense, dtype=np.int32)

    def head(self, requests: int) -> Trace:
        """The first requests only."""
        if requests < 1:
            raise TraceError(f"{self.name}: a slice needs at least 1 request, got {requests}")
        if requests >= len(self):
            return self
        blocks = int(self.block_offsets[requests])
        starts, counts = self.answer_starts, self.answer_blocks
        if starts is not None and counts is not None:
            starts, counts = starts[:requests], np.where(starts[:requests] < blocks, counts[:requests], 0)
        return replace(
            self,
            arrival_s=self.arrival_s[:requests],
            input_tokens=self.input_tokens[:requests],
            output_tokens=self.output_tokens[:requests],
            block_ids=self.block_ids[:blocks],
            block_offsets=self.block_offsets[: requests + 1],
            sessions=None if self.sessions is None else self.sessions[:requests],
            answer_starts=starts,
            answer_blocks=counts,
            notes=(*self.notes, f"first {requests:,} of {len(self):,} requests"),
        )


def first_broken_chain(block_ids: Int64Array, block_offsets: Int64Array) -> tuple[int, int] | None:
    """(request, block id) of the first id that does not follow the id it followed before; None when all are chained."""
    parents: dict[int, int] = {}
    offsets = block_offsets.tolist()
    for request in range(len(offsets) - 1):
        parent = -1
        for block in block_ids[offsets[request] : offsets[request + 1]].tolist():
            if parents.setdefault(block, parent) != parent:
                return request, block
            parent = block
    return None
