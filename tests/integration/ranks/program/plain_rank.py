"""What ranks do that need no library: live, or fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tunefleet import trainer_control


def main(folder: Path) -> None:
    """Do what the spec says."""
    session = trainer_control.open_session(folder)
    options = session.job["spec"]
    if options.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"pid-{session.rank}").write_text(str(os.getpid()))
    session.status.write(state="running", phase="training")
    if options.get("fails") == session.rank:
        raise ValueError("the weather is bad")
    if options.get("fails") is not None:
        # As a collective breaks off when a peer that had come is gone: the consequence, and it must not hide the cause.
        while not (folder / f"pid-{options['fails']}").exists():
            time.sleep(0.01)
        time.sleep(0.05)
        raise ConnectionError("Connection closed by peer")
    time.sleep(60)
