"""Server-sent events: what happens, how running tasks progress, and a task's log.

A stream goes on behind the id that the client saw last, and ends at once when the server stops. It waits for a
signal and asks the store only then; the signal's version is read before each look, so that nothing falls between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from fastapi import Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from tunefleet.services import events, logs
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor
from tunefleet.wire.api import LogView

_PAGE: Final = 500
_LOOK_S: Final = 10.0
"""A stream looks this often even if no signal came."""
_PING_S: Final = 15
_SEND_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a client wants."""

    task_id: str | None = None
    workflow_id: str | None = None
    kinds: tuple[str, ...] | None = None


def respond(stream: AsyncIterator[ServerSentEvent]) -> Response:
    """Answer with a stream; a comment now and then keeps proxies from closing it."""
    return EventSourceResponse(stream, ping=_PING_S, send_timeout=_SEND_TIMEOUT_S)


async def follow_log(core: Core, who: Actor, task_id: str, first: LogView) -> AsyncIterator[ServerSentEvent]:
    """Stream a log from the piece `first` on, and say `eos` after the last one.

    Args:
        core: Where the log is.
        who: Who reads.
        task_id: Whose log it is.
        first: The piece at the start; read by the caller, so that a wrong id is answered with an error, not a stream.
    """
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
