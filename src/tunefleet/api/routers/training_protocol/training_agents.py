"""Polling routes of the training-agent protocol: agents behind NAT fetch jobs and control requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BeforeValidator

from tunefleet.api import request_bodies
from tunefleet.api.auth import AgentKey, CoreDep, Member, Reader
from tunefleet.api.routers.training_protocol import TRAINING_PREFIX
from tunefleet.api.training_errors import TrainingRoute
from tunefleet.orchestrator.fleet.agents import Introduction
from tunefleet.orchestrator.training_protocol import agent_calls, agent_list, claims
from tunefleet.schemas.base import Line, Name
from tunefleet.schemas.training_protocol.training import (
    AgentList,
    AgentRemoved,
    AgentReply,
    ClaimReply,
    Heartbeat,
    HeartbeatReply,
    PollReply,
)

router = APIRouter(prefix=TRAINING_PREFIX, tags=["training"], route_class=TrainingRoute)


def _decoded(value: object) -> object:
    """Return a header's text, decoded as UTF-8 if it is valid."""
    try:
        return value.encode("latin-1").decode() if isinstance(value, str) else value
    except UnicodeError:
        return value


_Text = Annotated[Line | None, BeforeValidator(_decoded), Header(max_length=200)]


async def _introduction(
    x_agent_id: Annotated[
        Name, Header(min_length=10, max_length=128, description="Id of the agent, such as `agent_0123456789abcdef`.")
    ],
    x_agent_hostname: _Text = None,
    x_agent_platform: _Text = None,
    x_agent_version: _Text = None,
) -> Introduction:
    return Introduction(x_agent_id, x_agent_hostname, x_agent_platform, x_agent_version)


Who = Annotated[Introduction, Depends(_introduction)]
Wait = Annotated[float | None, Query(ge=0, le=600, description="Extension: how long to wait for a job, in seconds.")]


@router.get("/agent/poll")
async def poll(
    core: CoreDep,
    key: AgentKey,
    who: Who,
    wait_s: Wait = None,
    x_poll_wait: Annotated[float | None, Header(ge=0, le=600, description="Extension: same as `wait_s`.")] = None,
    x_agent_want: Annotated[
        int, Header(ge=0, le=10_000, description="Extension: number of jobs that the agent can take.")
    ] = 1,
) -> PollReply:
    """Poll for a job to claim and for control requests to the agent's jobs. Can wait until there is something.

    An agent gets jobs of its key's owner; with the fleet's worker key or an admin key, everyone's.
    """
    return await agent_calls.poll(core, key, who, wait_s=wait_s or x_poll_wait or 0.0, want=x_agent_want)


@router.post("/agent/claim/{task_id}")
async def claim(core: CoreDep, key: AgentKey, who: Who, task_id: str) -> ClaimReply:
    """Claim a job. If several agents claim it, one gets it and the others get 409 `ALREADY_CLAIMED`."""
    return await claims.claim(core, key, who, task_id)


@router.post("/agent/heartbeat", openapi_extra=request_bodies.documented(request_bodies.json_of(Heartbeat)))
async def heartbeat(request: Request, core: CoreDep, key: AgentKey, who: Who) -> HeartbeatReply:
    """Renew the leases of the jobs that the agent holds. An extension that agents may omit."""
    return await agent_calls.heartbeat(core, key, who, await request_bodies.read(request, Heartbeat))


@router.get("/agents")
async def list_agents(core: CoreDep, who: Reader) -> AgentList:
    """List your agents; everyone's for admins and viewers."""
    return await agent_list.list_(core, who)


@router.get("/agents/{agent_id}")
async def get_agent(core: CoreDep, who: Reader, agent_id: str) -> AgentReply:
    """Retrieve an agent and the number of its jobs."""
    return await agent_list.get(core, who, agent_id)


@router.delete("/agents/{agent_id}")
async def remove_agent(core: CoreDep, who: Member, agent_id: str) -> AgentRemoved:
    """Delete an agent. Returns 409 if it is online and has jobs."""
    return await agent_list.remove(core, who, agent_id)
