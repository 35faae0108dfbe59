"""`python -m simulations` is `trunkline simulate` without the gateway's command."""

from __future__ import annotations

import sys

from simulations.cli import main

if __name__ == "__main__":
    sys.exit(main())
