"""What a check of `tunefleet doctor` has found, and how to mend it."""

from __future__ import annotations

from typing import Literal

from tunefleet.schemas.base import Message

State = Literal["good", "warning", "bad"]


class Finding(Message):
    """What a check found.

    Args:
        name: What was checked.
        state: `good`; `warning` if something will not work or not well; `bad` if Tunefleet cannot work.
        found: In one line.
        mend: What to do about it.
    """

    name: str
    state: State
    found: str
    mend: str | None = None


def good(name: str, found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(name=name, state="good", found=found)


def warning(name: str, found: str, mend: str) -> Finding:
    """Return a finding that one can live with."""
    return Finding(name=name, state="warning", found=found, mend=mend)


def bad(name: str, found: str, mend: str) -> Finding:
    """Return a finding that stops Tunefleet."""
    return Finding(name=name, state="bad", found=found, mend=mend)
