"""Views of polling agents (contract B5)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tunefleet.schemas.base import Message


class AgentView(Message):
    """An agent."""

    agent_id: str
    user_id: str
    hostname: str | None
    platform: str | None
    version: str | None
    status: Literal["online", "offline"]
    is_online: bool
    last_poll_at: datetime | None
    registered_at: datetime
    has_lease: bool
    """Whether it renews its jobs with heartbeats; otherwise it counts as lost later."""
    load: dict[str, Any] = Field(default_factory=dict)
    total_jobs: int | None = None
    completed_jobs: int | None = None
    running_jobs: int | None = None


class AgentList(Message):
    """All agents visible to the caller."""

    agents: list[AgentView]
    online_threshold_seconds: int


class AgentReply(Message):
    """One agent."""

    agent: AgentView


class AgentRemoved(Message):
    """An agent was removed."""

    success: Literal[True] = True
    message: str
