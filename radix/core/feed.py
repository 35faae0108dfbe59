"""The desk between Python and the scanner of payloads: one array of words and buffers, and what a call answers.

Python writes what the events may be applied to (LEDGERS to LIMIT) and where to go on (PAYLOAD to OFFSET); the scanner writes the
rest. All positions are byte offsets from a word's name; OFFSET, END and EVENTS_AT count from the first payload's first byte.

Invariants
- Counts that come from the wire are compared with the room of a buffer before it is written.
- The payloads are followed by GUARD readable bytes: a step of the scanner reads no further than that behind where it began.
"""

from __future__ import annotations

# In: one holder and its plain group.
LEDGERS_OF_TIER = 0  # one per tier, -1 = none yet
PLAIN_ROOT = 32
GRAIN = 40
GROUP = 48
FULL_KIND = 56  # 1: the group said that it is full attention; 0: it said nothing
OTHER_ROOTS = 64  # 1: a parent may lie under any root with this grain
LIMIT = 72  # stores that fit into the log; -1: none is wanted

# In and out: where to go on, and where it stopped.
PAYLOAD = 80
EVENT = 88  # 0 also says that the frame is to be read first
OFFSET = 96

# Out: where it stopped; what was done is added to the counters, which Python sets to 0.
END = 104  # of the event that waits
EVENTS_AT = 112  # of the list of events, and how many there are
EVENTS_COUNT = 120
EVENTS_DONE = 128
STORED = 136
REMOVED = 144
UNKNOWN = 152
SKIPPED = 160
LOGGED = 168
COUNTERS = 128  # these five

# The event at hand.
KIND = 200
BLOCKS = 208
TOKENS = 216
SIZE = 224
TIER = 232
PARENT = 240
PARENTED = 248
NAMESPACED = 256
GROUP_NAMED = 264
PENDING = 280  # hashes removed and not yet taken out of the tree, and from which tier
PENDING_TIER = 288
STACK = 320  # of `skip`: 17 words

MAX_PAYLOADS = 1 << 10  # per call
MAX_BLOCKS = 1 << 16  # per event
MAX_TOKENS = 1 << 20  # per event
MAX_STORES = 1 << 12  # in the log
MAX_PAYLOAD_BYTES = 16 << 20
GUARD = 256

# Buffers.
ENDS = 512  # of each payload
BATCHES = ENDS + 8 * MAX_PAYLOADS  # timestamp (float64), rank
LOG = BATCHES + 16 * MAX_PAYLOADS  # root, blocks before, blocks
HASHES = LOG + 24 * MAX_STORES  # pending removals, then those of the event at hand
NAMES = HASHES + 16 * MAX_BLOCKS  # a table that finds equal hashes
IDS = NAMES + 32 * MAX_BLOCKS
DESK_BYTES = IDS + 4 * MAX_TOKENS + 256

NO_RANK = -(1 << 63)

# What a call answers.
DONE = 0
SLOW_EVENT = 1  # the event at OFFSET .. END is another one's work
SLOW_REST = 2  # so is the payload from there on: its end, or its frame, was not understood
LOG_FULL = 3
