"""Lets somebody outside ask a process where its threads stand, even one that hangs in C code or in a lock.

The signal is a real-time one that no program uses for itself: SIGUSR1 means "you are about to be preempted" on many
clusters. Nobody may send it to a process that has not said that it listens: `listens`.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
from pathlib import Path

logger = logging.getLogger(__name__)

SIGNAL: int = signal.SIGRTMAX - 7 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
"""Asks for the stacks of all threads, on standard error."""


def listen() -> bool:
    """Write the stacks to standard error whenever `SIGNAL` comes; children that are forked do so, too.

    Returns:
        False if the signal has a handler already, or the system cannot do it: then nothing has changed.
    """
    if signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return False
    try:
        faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        logger.debug("Stacks cannot be asked for: %s", error)
        return False
    return True


def listens(pid: int) -> bool:
    """Tell whether a process catches `SIGNAL`; the default action would end it. Only Linux tells, elsewhere False."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
