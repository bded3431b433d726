"""The keeper's answer to whoever asked for a start: one line of JSON over a pipe or a socket."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any


def read_reply(fd: int, timeout_s: float) -> dict[str, Any] | None:
    """Return the answer, or None if the other end ended or said nothing in time.

    Args:
        fd: A descriptor to read from; it stays open.
        timeout_s: For the whole line.
    """
    text, deadline = b"", time.monotonic() + timeout_s
    while not text.endswith(b"\n"):
        if not select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0]:
            return None
        chunk = os.read(fd, 4096)
        if not chunk:
            return None
        text += chunk
    reply: dict[str, Any] = json.loads(text)
    return reply
