"""Runs a module like `python -m` while its parent process lives.

    python -m tunefleet.cli.local_cluster.child PARENT_PID MODULE …

If `tunefleet up` is killed, its server and workers end as on SIGTERM, so that the next `up` finds the data folder
free. Jobs are not children of the worker and keep running.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

_POLL_S: Final = 0.5


def main() -> None:
    """Watch the parent and run the module."""
    parent, module, *arguments = sys.argv[1:]
    # A thread, because the module owns the main thread.
    threading.Thread(target=watch, args=(int(parent),), name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def watch(parent: int) -> None:
    """Send SIGTERM to this process once its parent has ended."""
    # Polling the parent id is portable; prctl(PR_SET_PDEATHSIG) exists on Linux only.
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
