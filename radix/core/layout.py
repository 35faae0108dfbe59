"""Where everything lies in the mapping, and what must hold there.

One sparse mapping holds the whole tree; every address is `base` plus a constant of this page, so nothing moves when it grows
and the same code works on shared memory at another address.

Invariants
- All numbers in compiled code are int64, keys and hashes too: Numba turns a mix of int64 and uint64 into float64. Where the
  sign would matter there are intrinsics (`shift_right`, `mul_high`, `divide`), and constants above 2^63 stand here as `signed`.
- Node 0 is the super root; its children are the roots, keyed by 16 words that name a namespace (see `ROOT_KEY_WORDS`).
- A node is a run of whole blocks which has the same members all along. Its tokens are one extent of the arena. `START` is the
  number of blocks before it; block depths count from 1, so depth d lies in the node iff START < d <= START + LENGTH.
- A split gives the new id to the upper part, a join keeps the id of the lower one. So an id once written into a handle leads to
  the right node: climb to the parent while depth <= START. A node that died or was joined away stays as a stub (`ROOT` = 0)
  while `REFS` (handles and stubs naming it) is above 0; the START of one joined away is `NOWHERE`, its parent the other half.
- A child is found by a hash of (node, first block) and always verified: parent and all tokens of the block.
- Readers check `SEQUENCE` before and after, and may see garbage in between: every id they use is masked, every loop bounded by
  a table's size or the query's length, every region followed by room for the longest read.
"""

from __future__ import annotations

VERSION = 2
MARK = 0x54525558 << 16 | VERSION  # stands at MAGIC


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    return value - (1 << 64) if value >> 63 else value


# Regions, bytes from the base.
HEADER = 0
SEGMENTS = 1 << 20  # of the store in progress: node, blocks, held before; and positions of unknown hashes
LEDGERS = 64 << 20
TAGS = 256 << 20  # one byte per arena unit: where free runs start and end
CLOCKS = 512 << 20  # one u32 per node: when it was last matched (see `evicting`)
NODES = 1 << 30
ARENA = 16 << 30
TOTAL = 34 << 30  # the last 2 GiB are the guard behind the arena

# The arena: units of one cache line, or one block of 16 tokens.
UNIT = 64
UNIT_WORDS = 16
WORD_BITS = 4  # log2 of UNIT_WORDS
ARENA_UNITS = 1 << 28
STORE_UNITS = ARENA_UNITS - (1 << 24)  # stores stop here; what is left lets removals cut edges

# Header words. The first line is all that a reader polls; the second is read once per match.
SEQUENCE = 0
CLOCK = 8  # stores so far; on the first line, which every change writes anyway
STRIDE = 64  # bytes per node
WORDS = 72  # member words per tier
TIERS_USED = 80
CHILDREN_TABLE = 88
CHILDREN_USED = 128
CHILDREN_FILLED = 264  # with marks of erased ones
SHARES_FILLED = 272
RELEASE_FROM = 280  # bytes: an outgrown table this large goes back to the system
RELEASE_ADVICE = 288  # by this madvise
PAGE_BYTES = 296
NODE_NEXT = 136
NODE_FREE = 144
NODES_LIVE = 152
STUBS = 160
BLOCKS = 168
HANDLES = 176
ARENA_TOP = 184
ARENA_HIGH = 192  # the highest top there ever was
ARENA_USED = 200
SHARES_TABLE = 216
SHARES_USED = 224
EMPTY_ROOTS = 232
MAGIC = 240
SEED = 248
NODE_LIMIT = 256  # numbers below this fit into the region
EMPTIED = 304  # roots that lost their last child since the writer looked: how often
ARENA_ROOM = 312  # stores let the top rise to here
BUDGET = 320  # bytes
HEARTBEAT = 384  # when the writer last said that it lives, nanoseconds of the monotonic clock; 0 where it does not
FREE_CLASSES = 512  # bit k: list k of free runs has any
CLASS_WORDS = 4
FREE_HEADS = 2048  # by class; the unit, 0 = none
KEYS_AHEAD = 1024  # ring of the next keys of the hashes at hand
EMPTIED_ROOTS = 1536  # ring of those roots
EMPTIED_MASK = 31

# Ledgers: 64 bytes each. A table is unit << 32 | entries.
LEDGER_BITS = 6
MAX_LEDGERS = 1 << 20
MAX_HOLDERS = 1 << 14
MAX_REMOVED = 1 << 21  # hashes in one removal
LEDGER_TABLE = 0
LEDGER_USED = 8
LEDGER_TIER = 16
LEDGER_HOLDER = 24
LEDGER_COUNTING = 32
LEDGER_FILLED = 40  # with marks of erased ones

# Nodes: u32 fields, then the member words of the first tier in use, of the second, ...
NODE_BITS = 27
NODE_MASK = (1 << NODE_BITS) - 1
NODE_REGION = 8 << 30
OFFSET = 0  # words from the arena's start
LENGTH = 4  # blocks
PLACE = 8  # START << 11 | units of slack behind the tokens
PARENT = 12  # of a free node: the next free one
CHILDREN = 16
ONLY = 20  # all children's ids xor-ed: with one child, its id
REFS = 24
ROOT = 28
MEMBERS = 32
SLACK_BITS = 11
SLACK_MASK = (1 << SLACK_BITS) - 1
NOWHERE = (1 << 21) - 1
MAX_DEPTH = NOWHERE - 1

# A root's own extent, in words: 8 of a digest of the namespace, grain, group, zeros. Its grain is also its first member word.
ROOT_KEY_WORDS = 16
ROOT_GRAIN = MEMBERS

# Table entries: key, value. A handle is node << 37 | depth << 16 | copies.
ENTRY = 16
GONE = -1  # the key of an erased entry
HANDLE_NODE = 37
HANDLE_DEPTH = 16
DEPTH_MASK = (1 << 21) - 1
COPIES_MASK = (1 << 16) - 1

# A reader's own memory, in int64 words (see `reader`).
SCRATCH_WIDTH = 0  # member words it has room for: WORDS * TIERS_USED
SCRATCH_LOAD = 1  # address of int64 load by holder, 0 = none
SCRATCH_NODE = 2  # the deepest node of the last walk
SCRATCH_STAMPS = 3  # not 0: matches write clocks
SCRATCH_WORDS = 4  # WORDS as it was when the width was taken: the tree may have grown since the walk
SCRATCH_WANTED = 5  # member words to look at, then those still alive, then those of the node, then rows

CLOCK_BYTES = 4
CLOCK_LIMIT = (1 << 32) - 1
JOIN_UNITS = 256  # equal neighbours that are not adjacent are copied together up to 16 KiB
GOLDEN = signed(0x9E3779B97F4A7C15)
MIX_A = signed(0xBF58476D1CE4E5B9)
MIX_B = signed(0x94D049BB133111EB)
UNMIX_A = signed(0x96DE1B173F119089)
UNMIX_B = signed(0x319642B2D24D8EC3)
KEY_MUL = signed(0xFF51AFD7ED558CCD)

PLACE_BITS = 21  # of the depth in a place
PLACED = -2  # instead of a parent's ledger: the parent is named by node and depth

# What a store answers instead of a count.
UNKNOWN_PARENT = -1
FOREIGN_PARENT = -2  # its root has another grain
FULL = -3
TOO_DEEP = -4
# What a match answers instead of rows.
GAVE_UP = -1
WIDENED = -2  # the scratch is too small by now
ODD_TRIES = 200_000
WALK_TRIES = 1_000
SHARED_ODD_TRIES = 400_000  # some 0.1 ms: the writer is in another process and may be dead
SHARED_WORK = 8_192  # blocks walked in vain
