"""Server-sent events of one job: `status`, `metric` and `log`; goes on behind the id that the client saw last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import orjson
from fastapi import Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from tunefleet.agent.jobs.job import AgentJob

if TYPE_CHECKING:
    from tunefleet.agent.agent import Agent

_LOOK_S: Final = 0.3
_PAGE: Final = 500
_PING_S: Final = 15


def respond(events: AsyncIterator[ServerSentEvent]) -> Response:
    """Answer with a stream; a comment now and then keeps proxies from closing it."""
    return EventSourceResponse(events, ping=_PING_S, send_timeout=60)


async def follow(agent: Agent, job: AgentJob, last_id: str | None) -> AsyncIterator[ServerSentEvent]:
    """Stream a job until it has ended and all is told, or the agent stops."""
    points, lines = _position(last_id)
    shown = ""
    while not agent.stopping.is_set():
        final = job.record.state.final
        status = (await asyncio.to_thread(agent.status, job.job_id)).model_dump_json()
        if status != shown:
            shown = status
            yield ServerSentEvent(status, event="status", id=f"{points}:{lines}")
        series = (await asyncio.to_thread(job.journal)).points
        # A resume takes back the points that it will measure again.
        points = min(points, len(series))
        for point in series[points:]:
            points += 1
            yield ServerSentEvent(point.model_dump_json(exclude_none=True), event="metric", id=f"{points}:{lines}")
        page, first, total = await asyncio.to_thread(job.log, lines, _PAGE)
        if page:
            lines = first + len(page)
            yield ServerSentEvent(orjson.dumps({"lines": page}).decode(), event="log", id=f"{points}:{lines}")
        if final and lines >= total:
            return
        if len(page) < _PAGE:
            await asyncio.sleep(_LOOK_S)


def _position(last_id: str | None) -> tuple[int, int]:
    first, _, second = (last_id or "").partition(":")
    return (int(first), int(second)) if first.isdigit() and second.isdigit() else (0, 0)
