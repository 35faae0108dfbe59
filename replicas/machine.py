"""What this machine has."""

from __future__ import annotations

import os


def machine_memory_bytes() -> int:
    """Physical memory of the machine; nothing larger can ever be used."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
