"""What is shown of the tries of a task."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tunefleet.schemas.base import Message


class NodeView(Message):
    """One worker of a try that ran on several."""

    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None


class AttemptView(Message):
    """One try of a task."""

    number: int
    worker_id: str
    state: Literal["offered", "accepted", "finished", "void"]
    reason: str | None = None
    error: str | None = None
    offered_at: datetime
    accepted_at: datetime | None = None
    finished_at: datetime | None = None
    nodes: tuple[NodeView, ...] = ()
    """All of its workers, in the order of their rank, if it runs on several; the first reports."""
