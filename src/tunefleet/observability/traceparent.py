"""W3C's `traceparent`, and ids of spans that several processes derive alike, without a word between them.

A span's id is a digest of what it stands for (a task, an attempt, a launch). So a process can name the parent of what
it tells without having seen it, and whoever goes on after a crash tells the same span, not another one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A span: its trace, its id, and whether anybody keeps it."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The value of the header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def span(self, name: str) -> Place:
        """Return the span of this trace that stands for something."""
        return Place(self.trace_id, _digest(f"{self.trace_id}/{name}", 16), self.sampled)


def read(text: str | None) -> Place | None:
    """Return the span that a `traceparent` names; null if it names none: the standard says to go on without it."""
    found = _FORM.fullmatch(text.strip()) if text else None
    if found is None or (text and text.startswith("00-") and found[4]):
        return None
    trace_id, span_id = found[1], found[2]
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Place(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


def of_task(task_id: str, parent: Place | None = None) -> Place:
    """Return the span of a whole task: in the trace of whoever submitted it, or at the head of one of its own."""
    if parent is not None:
        return parent.span(f"task {task_id}")
    return Place(_digest(f"tunefleet trace of {task_id}", 32), _NO_SPAN).span(f"task {task_id}")


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
