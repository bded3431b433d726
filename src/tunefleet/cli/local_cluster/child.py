"""Runs a module like `python -m`, as long as its parent lives.

    python -m tunefleet.cli.local_cluster.child PARENT_PID MODULE …

A server or worker that `tunefleet up` started ends like after SIGTERM when `up` itself is killed, so that the next
`up` finds the data folder free. Trainings are nobody's children and are not touched.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

_LOOK_S: Final = 0.5


def main() -> None:
    """Watch the parent and run the module."""
    parent, module, *arguments = sys.argv[1:]
    threading.Thread(target=watch, args=(int(parent),), name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def watch(parent: int) -> None:
    """End this process as SIGTERM does, once its parent is gone."""
    # An orphan gets another parent; asking for it is portable, unlike prctl.
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
