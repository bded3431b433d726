"""The web UI's single event stream: a browser allows six connections per host, and a page shows everything.

Updates are batched, so that a hundred running tasks cause one message a second. The id of each message is a position in
all feeds: a reconnecting client continues there and misses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel
from sse_starlette import ServerSentEvent

import tunefleet
from tunefleet.campaign.service import step_progress
from tunefleet.errors import TooManyError
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.telemetry.live_feed import StreamPosition
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.live import (
    CampaignActivity,
    LiveCampaigns,
    LiveEvents,
    LiveHello,
    LiveLoads,
    LiveProgress,
    TaskProgress,
)
from tunefleet.schemas.worker_link import Load

# Updates are collected for this long before they are sent.
GATHER_S: Final = 0.25
_PAGE: Final = 500
MOST_STREAMS: Final = 100
"""Streams per key: a program that opens one after another must not slow down other users."""
# A client that missed more events than this reloads everything.
FAR: Final = 5000
_PROGRESS_S: Final = 1.0
_LOADS_S: Final = 2.0
_LOOK_S: Final = 10.0
_RETRY_S: Final = 30
_PAUSE: Final = "live:pause"
"""A topic without publishers: a wait for it ends with its timeout, or when the server stops."""


@dataclass(slots=True)
class _OpenStreams:
    """Number of open event streams of the web UI, by key."""

    by_key: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Live:
    """One connection of a page."""

    core: ServerContext
    who: Actor
    place: StreamPosition
    unknown: tuple[str, ...] = ()
    _progress: Mapping[str, TaskProgress] = field(default_factory=dict)
    _cycles: dict[tuple[str, int], CampaignActivity] = field(default_factory=dict)
    _loads: dict[str, Load] = field(default_factory=dict)
    _progress_at: float = -_PROGRESS_S
    _loads_at: float = -_LOADS_S

    def refuse_many(self) -> None:
        """Refuse a stream over the limit of a key."""
        if self.core.state(_OpenStreams).by_key[self.who.key_id] >= MOST_STREAMS:
            raise TooManyError(
                f"This key already has {MOST_STREAMS} open streams.",
                hint="Close browser windows that you do not need, or use a separate key for each user.",
                retry_after_s=_RETRY_S,
            )

    async def messages(self) -> AsyncIterator[ServerSentEvent]:
        """Stream updates until the server stops."""
        self.core.state(_OpenStreams).by_key[self.who.key_id] += 1
        try:
            async for message in self._messages():
                yield message
        finally:
            self.core.state(_OpenStreams).by_key[self.who.key_id] -= 1

    async def _messages(self) -> AsyncIterator[ServerSentEvent]:
        core, signals = self.core, self.core.signals
        newest = await live_feed.last_event_id(core, self.who)
        missed = not 0 <= newest - self.place.event_id <= FAR
        if missed:
            self.place = StreamPosition(newest, self.place.points)
        now = to_datetime(core.clock.wall())
        yield self._say("hello", LiveHello(version=tunefleet.__version__, now=now, missed=missed, unknown=self.unknown))
        while not signals.closed:
            topics = ("events", *(f"task:{task_id}" for task_id in self.place.points))
            seen = {topic: signals.version(topic) for topic in topics}
            more = False
            async for message, unfinished in self._news():
                more = more or unfinished
                yield message
            if not more:
                moves = self._progress or self._cycles or core.state(Fleet).presences
                await signals.wait_any(seen, _PROGRESS_S if moves else _LOOK_S)
                # The batching delay: not `asyncio.sleep`, so that a server that stops ends the stream immediately.
                await signals.wait(_PAUSE, GATHER_S)

    async def _news(self) -> AsyncIterator[tuple[ServerSentEvent, bool]]:
        """Yield updates, each with whether more are available immediately."""
        new_events = await live_feed.events_after(self.core, self.who, self.place.event_id, limit=_PAGE)
        if new_events:
            self.place = StreamPosition(new_events[-1].id, self.place.points)
            yield self._say("events", LiveEvents(events=tuple(new_events))), len(new_events) == _PAGE
        for task_id, known in self.place.points.items():
            update, reached, more = await live_feed.points(self.core, task_id, known)
            self.place = StreamPosition(self.place.event_id, {**self.place.points, task_id: reached})
            if update.points or update.resumed:
                yield self._say("points", update), more
        now = self.core.clock.monotonic()
        if now - self._progress_at >= _PROGRESS_S:
            self._progress_at = now
            async for message in self._moved():
                yield message, False
        if now - self._loads_at >= _LOADS_S:
            self._loads_at = now
            loads = live_feed.loads(self.core, self.who, self._loads)
            if loads:
                yield self._say("loads", LiveLoads(workers=loads)), False

    async def _moved(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the progress of running tasks and cycles, where it has changed."""
        tasks, self._progress = self._progress, await live_feed.progress(self.core, self.who)
        further = tuple(each for id_, each in self._progress.items() if tasks.get(id_) is not each)
        if further:
            yield self._say("progress", LiveProgress(tasks=further))
        cycles, self._cycles = self._cycles, await step_progress.running_activity(self.core, self.who, self._cycles)
        changed = tuple(each for key, each in self._cycles.items() if cycles.get(key) is not each)
        if changed:
            yield self._say("campaigns", LiveCampaigns(cycles=changed))

    def _say(self, kind: str, message: BaseModel) -> ServerSentEvent:
        return ServerSentEvent(message.model_dump_json(), event=kind, id=str(self.place))
