"""Server-sent events: events, the progress of running tasks, and a task's log.

A stream continues after the last id that the client received, and ends immediately when the server stops. It waits for
a topic and reads the database only then; the topic's version is read before each query, so that no update is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from tunefleet.api.auth import core_of, identify
from tunefleet.errors import AuthError
from tunefleet.orchestrator.access.permissions import KEYS, Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import live_feed, logs
from tunefleet.schemas.api import EventView, LogView, ProgressView, TaskView

_PAGE: Final = 500
_PROGRESS_S: Final = 1.0
PROGRESS_KIND: Final = "task.progress"
_LOOK_S: Final = 10.0
"""A stream queries at least this often, in case a notification was lost."""
# How long an idle stream runs before its key is checked again; a revocation triggers the check immediately.
_LONGEST_S: Final = 600.0
_PING_S: Final = 15
_SEND_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a client wants."""

    task_id: str | None = None
    workflow_id: str | None = None
    kinds: tuple[str, ...] | None = None


class EventStream(EventSourceResponse):
    """An event stream whose class has a media type, so that the OpenAPI document shows it."""

    media_type = "text/event-stream"


def respond(
    request: Request,
    stream: AsyncIterator[ServerSentEvent],
    *,
    know: Callable[[Request], Awaitable[object]] = identify,
) -> Response:
    """Return an event stream that ends when the caller's key becomes invalid."""
    # The periodic comments keep proxies from closing an idle connection.
    return EventStream(_while_known(request, stream, know), ping=_PING_S, send_timeout=_SEND_TIMEOUT_S)


async def _while_known(
    request: Request, stream: AsyncIterator[ServerSentEvent], know: Callable[[Request], Awaitable[object]]
) -> AsyncIterator[ServerSentEvent]:
    unknown = asyncio.create_task(_until_unknown(request, know))
    try:
        while True:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                await asyncio.wait((coming, unknown), return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Also if the client disconnected: the generator must end at the point where it waits.
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait((coming,))
            if unknown.done():
                unknown.result()
                return
            message = coming.result()
            # A session may have expired, which publishes nothing.
            if message is None or not await _is_known(request, know):
                return
            yield message
    finally:
        unknown.cancel()


async def _until_unknown(request: Request, know: Callable[[Request], Awaitable[object]]) -> None:
    """Return once the caller's key is no longer valid, for example revoked."""
    signals = core_of(request).signals
    while not signals.closed:
        seen = signals.version(KEYS)
        if not await _is_known(request, know):
            return
        await signals.wait(KEYS, _LONGEST_S, seen)
    # The stream ends with the server and may still send its last messages: wait to be cancelled.
    await asyncio.Event().wait()


async def _is_known(request: Request, know: Callable[[Request], Awaitable[object]]) -> bool:
    try:
        await know(request)
    except AuthError:
        return False
    return True


async def follow_events(
    core: ServerContext, who: Actor, wanted: EventFilter, after: int
) -> AsyncIterator[ServerSentEvent]:
    """Stream events after the id `after`, and the progress of running tasks in between, until the server stops."""
    signals = core.signals
    progress = _Progress(core, who, wanted)
    while not signals.closed:
        seen = signals.version("events")
        newest = await live_feed.last_event_id(core, who)
        found = await live_feed.events_after(
            core, who, after, limit=_PAGE, task_id=wanted.task_id, workflow_id=wanted.workflow_id, kinds=wanted.kinds
        )
        for event in found:
            yield ServerSentEvent(event.model_dump_json(), id=str(event.id))
        # A filter may skip many events: do not scan them again.
        after = found[-1].id if found else max(after, newest)
        if len(found) < _PAGE:
            for view in await progress.news(after):
                yield ServerSentEvent(view.model_dump_json(), event="progress")
            await signals.wait("events", progress.pause_s, seen)


@dataclass(slots=True)
class _Progress:
    """Progress that a client has received; queries the database only while tasks are running."""

    core: ServerContext
    who: Actor
    wanted: EventFilter
    _sent: dict[str, ProgressView] = field(default_factory=dict)
    _looked_at: float = 0.0
    _running: bool = True

    @property
    def pause_s(self) -> float:
        """How long to wait for events before the next query."""
        return _PROGRESS_S if self._running else _LOOK_S

    async def news(self, last_id: int) -> list[EventView]:
        """Return the progress that changed since the last query, at most once a second."""
        kinds = self.wanted.kinds
        now = self.core.clock.monotonic()
        if (kinds is not None and PROGRESS_KIND not in kinds) or now - self._looked_at < _PROGRESS_S:
            return []
        self._looked_at = now
        running = await tasks.list_(
            self.core, self.who, limit=_PAGE, status="running", workflow_id=self.wanted.workflow_id
        )
        views = [view for view in running.items if self.wanted.task_id in {None, view.id}]
        self._running = bool(views)
        sent, self._sent = self._sent, {view.id: view.progress for view in views if view.progress is not None}
        return [
            _progress_event(view, view.progress, last_id)
            for view in views
            if view.progress is not None and view.progress != sent.get(view.id)
        ]


def _progress_event(task: TaskView, progress: ProgressView, last_id: int) -> EventView:
    return EventView(
        id=last_id,
        at=progress.at or datetime.now(UTC),
        kind=PROGRESS_KIND,
        task_id=task.id,
        workflow_id=task.workflow_id,
        worker_id=task.worker_id,
        data=progress.model_dump(mode="json"),
    )


async def follow_log(core: ServerContext, who: Actor, task_id: str, first: LogView) -> AsyncIterator[ServerSentEvent]:
    """Stream a log from the piece `first` on, and send `eos` after the last one."""
    signals = core.signals
    topic = logs.topic(first.task_id)
    view = first
    while True:
        if view.text:
            yield ServerSentEvent(view.model_dump_json(), event="log", id=str(view.next_offset))
        if view.final:
            yield ServerSentEvent("{}", event="eos")
            return
        if signals.closed:
            return
        seen = signals.version(topic)
        after = await logs.read(core, who, task_id, offset=view.next_offset)
        if not after.text and not after.final:
            await signals.wait(topic, _LOOK_S, seen)
        view = after
