"""Compares an output with the one that a page shows: words must be the same, ids, times and figures may differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PLACEHOLDERS: Final = (
    (re.compile(r"\b(task|wf|fed|job|art|key|srv|ntf|inv)-[0-9a-f]+\b"), r"<\1>"),
    (re.compile(r"\blab(?:-\d)?\b"), "<worker>"),
    (re.compile(r"\d+/\d+ \d+:\d+"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"), "<time>"),
    (re.compile(r"(?<![\w.])-?\d+(?:[.,:]\d+)*(?:e-?\d+)?"), "<n>"),
    (re.compile(r"[─━-]{4,}"), "<rule>"),
    (re.compile(r"\s+"), " "),
)


def plain(line: str) -> str:
    """Return a line with a placeholder for each id, time and figure, and one blank for several."""
    for pattern, placeholder in _PLACEHOLDERS:
        line = pattern.sub(placeholder, line)
    return line.strip()


_MOVES: Final = re.compile(r"^[\w#-]+: (?:pending|queued|dispatched|running)\b")
"""A line of `--follow`: which of them there are is a matter of moments."""
_ENDS: Final = re.compile(r"^[\w#-]+: completed$")
"""Another one: of tasks that run side by side, either may end first."""


def difference(shown: Sequence[str], said: Sequence[str]) -> str | None:
    """Return the first line that a page shows and the command did not print, in their order; null if there is none.

    The command may say more: what moves while a task runs is not the same each time.
    """
    everything = [plain(line) for line in said]
    rest = iter(everything)
    for line in shown:
        wanted = plain(line)
        if wanted and not _MOVES.match(line) and wanted not in (everything if _ENDS.match(line) else rest):
            return line
    return None
