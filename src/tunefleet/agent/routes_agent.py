"""The route that carries out a verb of the agent itself; the same verbs come with a poll."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from tunefleet.agent import bodies
from tunefleet.agent.verbs import Verbs
from tunefleet.schemas.base import Body
from tunefleet.schemas.training_protocol.training import AgentCommand, AgentOutcome, AgentVerb

router = APIRouter(route_class=bodies.Route)


class VerbRequest(Body):
    """Body of `POST /api/agent/commands`."""

    command: AgentVerb
    data: dict[str, Any] = Field(default_factory=dict)


@router.post("/api/agent/commands")
def command(request: Request, body: VerbRequest) -> AgentOutcome:
    """Restart, change settings, collect diagnostics, upgrade; jobs go on through all of them."""
    verbs: Verbs = request.app.state.verbs
    return verbs(AgentCommand(command_id=f"local-{uuid.uuid4().hex[:12]}", command=body.command, data=body.data))
