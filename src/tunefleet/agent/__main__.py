"""`python -m tunefleet.agent`: settings, logging, and one agent until a signal ends it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tunefleet.agent.log_setup import set_up
from tunefleet.errors import TunefleetError
from tunefleet.settings import load_agent


def main(arguments: Sequence[str] = ()) -> int:
    """Run an agent.

    Returns:
        0 after a clean stop, 1 if it cannot work; the reason is on standard error in one sentence.
    """
    argparse.ArgumentParser(
        prog="python -m tunefleet.agent",
        description="Run the training agent of this machine. It is set by the environment, by .env and by agent.env in "
        "TUNEFLEET_HOME; SIGTERM ends it, and its jobs go on.",
    ).parse_args(arguments)
    try:
        settings = load_agent()
        set_up(settings)
        # Takes two seconds to import: what is wrong with the settings is said without them.
        from tunefleet.agent.main import run  # noqa: PLC0415

        again = run(settings)
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if again:
        # The same process, so that whoever started it keeps it; jobs have processes of their own.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
