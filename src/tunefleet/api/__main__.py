"""`python -m tunefleet.api`: see `process`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run a server."""
    # Importing the modules creates no garbage worth collecting, but collections took a third of the start time.
    # `process` turns the collector on again before it serves.
    gc.disable()
    from tunefleet.api import process  # noqa: PLC0415 -- only now

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
