"""`python -m tunefleet.api`: see `process`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run a server; no garbage is looked for among the modules that it is made of, which took a third of the start."""
    gc.disable()
    from tunefleet.api import process  # noqa: PLC0415 -- only now

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
