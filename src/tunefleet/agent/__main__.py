"""`python -m tunefleet.agent`: load settings, configure logging, and run one agent until a signal stops it."""

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
        0 after a clean stop, 1 on an error; the message is on standard error.
    """
    argparse.ArgumentParser(
        prog="python -m tunefleet.agent",
        description="Run the training agent of this machine. Settings come from the environment, .env and agent.env in "
        "TUNEFLEET_HOME. SIGTERM stops the agent; its jobs keep running.",
    ).parse_args(arguments)
    try:
        settings = load_agent()
        set_up(settings)
        # Takes two seconds to import: errors in the settings are reported first.
        from tunefleet.agent.main import run  # noqa: PLC0415

        again = run(settings)
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if again:
        # exec keeps the pid, so that a service manager does not lose the process; jobs have their own processes.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
