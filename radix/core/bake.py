"""`python -m radix.core.bake`: compile the index into its cache, once for all processes of this machine or image.

An image that is built on one machine and runs on others fixes NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, at build and at run time.
"""

from __future__ import annotations

import fcntl
import sys
import time

from radix.core.entries import load
from radix.core.jit import default_cache, version
from radix.core.keyed import load_keyed


def main() -> int:
    """Fill the cache; another process that does the same is waited for."""
    folder = default_cache() / version()
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        load_keyed()
        load()  # last: it marks the folder as whole
    sys.stderr.write(f"index code in {folder}: {time.monotonic() - started:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
