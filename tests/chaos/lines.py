"""Lines between the members of a world, which can be held, cut and let go; each is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.nat.namespaces import Teller

_MIDDLE = Path(__file__).resolve().parents[1] / "fakes" / "middle.py"


class Line:
    """What passes from one member to others, in one process.

    Args:
        teller: Tells that process.
    """

    def __init__(self, teller: Teller) -> None:
        self._teller, self._lock = teller, threading.Lock()

    def tell(self, order: str) -> list[list[Any]]:
        """Give an order: `hold` (nothing passes, nothing is closed), `cut` (every connection breaks), or `go`."""
        with self._lock:
            return self._teller.tell(order)


@contextmanager
def line(ends: Sequence[Mapping[str, str]]) -> Iterator[Line]:
    """A line with some ends, each with `listen` and `target`."""
    process = subprocess.Popen(
        [sys.executable, str(_MIDDLE), json.dumps(list(ends))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Line(Teller(process))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
