"""Bulk actions: one action for many tasks, each with its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tunefleet.errors import TunefleetError
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workflows import reruns
from tunefleet.schemas.ui import ManyReply, ManyRequest, OneOfMany

# Concurrent writes share a commit of the writer thread.
_CONCURRENCY: Final = 16


async def do(core: ServerContext, actor: Actor, request: ManyRequest) -> ManyReply:
    """Cancel, retry, remove or tag tasks; an error affects only its own task.

    Raises:
        ForbiddenError: If the actor may not change anything.
    """
    may_submit(actor)
    semaphore = asyncio.Semaphore(_CONCURRENCY)
    action = _ACTIONS.get(request.action) or partial(_tag, tags=request.tags, remove=request.action == "untag")

    async def one(task_id: str) -> OneOfMany:
        async with semaphore:
            try:
                return OneOfMany(task_id=task_id, ok=True, made=await action(core, actor, task_id))
            except TunefleetError as error:
                return OneOfMany(task_id=task_id, ok=False, code=error.code, detail=error.message, hint=error.hint)

    return ManyReply(items=tuple(await asyncio.gather(*(one(id_) for id_ in dict.fromkeys(request.task_ids)))))


async def _cancel(core: ServerContext, actor: Actor, task_id: str) -> None:
    await tasks.cancel(core, actor, task_id)


async def _retry(core: ServerContext, actor: Actor, task_id: str) -> str:
    return (await reruns.retry(core, actor, task_id)).tasks[0].id


async def _remove(core: ServerContext, actor: Actor, task_id: str) -> None:
    await tasks.remove(core, actor, task_id)


async def _tag(core: ServerContext, actor: Actor, task_id: str, *, tags: Sequence[str], remove: bool) -> None:
    await tasks.tag(core, actor, task_id, tags, remove=remove)


_ACTIONS: Final[dict[str, Callable[[ServerContext, Actor, str], Awaitable[str | None]]]] = {
    "cancel": _cancel,
    "retry": _retry,
    "remove": _remove,
}
