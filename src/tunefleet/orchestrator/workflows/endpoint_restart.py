"""Starts the run of an idle endpoint again, for the first request that comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.serving import directory, relay
from tunefleet.orchestrator.serving.calls import Endpoint
from tunefleet.orchestrator.workflows import reruns


@dataclass(slots=True)
class _Restarts:
    """Makes sure that many requests start one run."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def find(core: ServerContext, actor: Actor, name: str) -> Endpoint:
    """Return an endpoint that the actor may call; if it is idle, its run is started again.

    Raises:
        ForbiddenError: If the actor may not call it.
        NotFoundError: If there is no such endpoint.
    """
    relay.check(actor, name)
    if not relay.is_known(core, actor, name):
        async with core.state(_Restarts).lock:
            found = await core.read(lambda connection: directory.idle_task(connection, actor.project, name))
            if found is not None:
                task_id, owner = found
                # As its owner: the caller may have a key that can only call the endpoint.
                await _restart(core, Actor(actor.key_id, owner, "member", actor.project), task_id)
    return await relay.find(core, actor, name)


async def _restart(core: ServerContext, owner: Actor, task_id: str) -> None:
    try:
        await reruns.retry(core, owner, task_id)
    except ConflictError:
        # A request to another server was faster.
        return
