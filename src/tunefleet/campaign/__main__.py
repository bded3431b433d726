"""`python -m tunefleet.campaign`: the campaign daemon, the same as `tunefleet campaign run`."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    """Run the campaigns of `config.yaml` in the working directory until a signal arrives."""
    # Imported by name: `cli` is a layer above this package.
    status: int = import_module("tunefleet.cli.main").run(["campaign", "run", *sys.argv[1:]])
    return status


if __name__ == "__main__":
    sys.exit(main())
