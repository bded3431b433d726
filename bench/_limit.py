"""A limit on how long a benchmark takes, after which it ends what it has started and says so."""

from __future__ import annotations

import signal
from typing import Any


def end_after(seconds: int) -> None:
    """End this process, cleaning up, if it has not ended by itself until then."""

    def over(*_: Any) -> None:
        raise SystemExit(f"The benchmark took longer than {seconds} s and was ended.")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
