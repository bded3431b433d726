"""`python -m tunefleet.campaign`: the scheduler as a daemon; the same as `tunefleet campaign run`."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    """Run the campaigns of `config.yaml` in the working directory until a signal ends it."""
    # The command line is above this package; it is found by its name, as the installed command is.
    status: int = import_module("tunefleet.cli.main").run(["campaign", "run", *sys.argv[1:]])
    return status


if __name__ == "__main__":
    sys.exit(main())
