"""Moves the wall clock of a process by the seconds that the file `MOVED_CLOCK` holds, while it runs.

Python imports it at its start where this folder is on `PYTHONPATH`. `time.monotonic` goes on as it does.
"""

import os
import time
from pathlib import Path

_LOOK_S = 0.02


class _Moved:
    def __init__(self, file: Path) -> None:
        self.file, self.real = file, time.time
        self.looked_at, self.offset_s = -1.0, 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        if now - self.looked_at > _LOOK_S:
            self.looked_at = now
            self.offset_s = float(self.file.read_text() or 0)
        return self.real() + self.offset_s


if "MOVED_CLOCK" in os.environ:
    time.time = _Moved(Path(os.environ["MOVED_CLOCK"]))  # type: ignore[assignment]
