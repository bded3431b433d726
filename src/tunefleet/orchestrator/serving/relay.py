"""Relays requests to replicas, whose workers poll for them: they may be behind a NAT. Runs on the event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import endpoints
from tunefleet.errors import ForbiddenError, NotFoundError, TooManyError, TunefleetError, UnavailableError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.serving import directory, endpoint_usage
from tunefleet.orchestrator.serving.calls import FULL, MAX_BODIES, MAX_CALLS, Call, Endpoint, Replica
from tunefleet.schemas.endpoints import FramesReceipt, RelayedRequests, RelayPoll, ResponseFrames, openai_error

_HOLD_S: Final = 20.0
# Poll duration while requests are open: the worker's polls show that it is alive.
_OPEN_S: Final = 5.0
_LOOK_S: Final = 1.0
# Timeout for the first part of a response, and for each further one.
_FIRST_S: Final = 900.0
_NEXT_S: Final = 300.0
# Interval of the comments that keep proxies from closing a silent stream.
_PING_S: Final = 15.0
_QUEUED_RETRY_S: Final = 15


@dataclass(slots=True)
class Endpoints:
    """The endpoints of a server by project and name."""

    by_name: dict[tuple[str, str], Endpoint] = field(default_factory=dict)
    by_task: dict[str, Endpoint] = field(default_factory=dict)


def begin(core: ServerContext, endpoint: Endpoint, key_id: str, path: str, body: bytes) -> Call:
    """Start a request; `head` and `body` return its response.

    Args:
        path: Path below `/v1/`.

    Raises:
        TooManyError: If the key exceeds its rate limit, or the endpoint has too many open requests.
    """
    now = core.clock.monotonic()
    endpoint_usage.count_rate(core, endpoint, key_id, now)
    opened = endpoint.calls
    if len(opened) >= MAX_CALLS or sum(len(call.body) for call in opened) + len(body) > MAX_BODIES:
        raise TooManyError(
            f"The endpoint {endpoint.name} has too many open requests ({len(opened)}).",
            hint="Try again later, or add replicas.",
            retry_after_s=1,
        )
    call = Call(new_id("call"), path, body, key_id, asked_at=now, deadline=now + endpoint.wait_s)
    endpoint.waiting[call.id] = call
    endpoint.used_at = now
    _assign(core, endpoint)
    return call


async def models(core: ServerContext, endpoint: Endpoint) -> tuple[str, ...]:
    """Return the models of an endpoint.

    Raises:
        UnavailableError: If no replica is ready.
    """
    serving = endpoint.serving(core.clock.monotonic())
    if not serving:
        raise await _unavailable(core, endpoint)
    return serving[0].models


def check(actor: Actor, name: str) -> None:
    """Raise ForbiddenError if the actor may not call an endpoint."""
    if actor.endpoint is not None and actor.endpoint != name:
        raise ForbiddenError(f"The key is valid only for the endpoint {actor.endpoint}.")


def is_known(core: ServerContext, actor: Actor, name: str) -> bool:
    """Return whether a replica of an endpoint is connected, so that the database need not be read."""
    found = core.state(Endpoints).by_name.get((actor.project, name))
    return found is not None and bool(found.serving(core.clock.monotonic()))


async def find(core: ServerContext, actor: Actor, name: str) -> Endpoint:
    """Return an endpoint that the actor may call.

    Raises:
        ForbiddenError: If it may not.
        NotFoundError: If there is no such endpoint.
    """
    check(actor, name)
    state = core.state(Endpoints)
    if is_known(core, actor, name):
        return state.by_name[actor.project, name]
    row = await core.read(lambda connection: directory.live(connection, actor.project, name))
    if row is None:
        raise NotFoundError(f"There is no endpoint {name}.", hint="`tunefleet endpoints` lists them.")
    return _known(state, row)


async def head(core: ServerContext, endpoint: Endpoint, call: Call) -> tuple[int, str]:
    """Wait for the response; return its status and content type.

    Raises:
        UnavailableError: If no replica answers in time.
    """
    while call.status is None:
        seen = core.signals.version(_topic(call))
        _check(core, endpoint, call)
        left_s = call.deadline - core.clock.monotonic() if call.id in endpoint.waiting else _LOOK_S
        if left_s <= 0:
            raise await _unavailable(core, endpoint)
        await core.signals.wait(_topic(call), min(left_s, _LOOK_S), seen)
    return call.status, call.content_type


async def body(core: ServerContext, endpoint: Endpoint, call: Call) -> AsyncGenerator[bytes, None]:
    """Yield the body of a response as it arrives; a stream that breaks off ends with an error event.

    Raises:
        UnavailableError: If a response that is not a stream breaks off.
    """
    stream, sent_at = call.content_type.startswith("text/event-stream"), core.clock.monotonic()
    try:
        while True:
            seen = core.signals.version(_topic(call))
            ended, data, now = call.ended, call.take(), core.clock.monotonic()
            if stream and not data and now - sent_at > _PING_S:
                data = b": waiting\n\n"
            if data:
                sent_at = now
                yield data
            if ended and call.error is None:
                return
            _check(core, endpoint, call)
            await core.signals.wait(_topic(call), 0 if ended else _LOOK_S, seen)
    except TunefleetError as error:
        if not stream:
            raise
        # OpenAI clients raise it.
        yield b"data: " + orjson.dumps(openai_error(503, error.message, error.code, error.hint)) + b"\n\n"


def _check(core: ServerContext, endpoint: Endpoint, call: Call) -> None:
    """Raise if a response will not continue."""
    if call.error is not None:
        raise UnavailableError(call.error)
    if core.signals.closed:
        raise UnavailableError("The server is shutting down.")
    _recover(core, endpoint)
    silent_s = core.clock.monotonic() - max(call.moved_at, call.asked_at)
    if silent_s > (_NEXT_S if call.begun else _FIRST_S):
        raise UnavailableError(f"No response for {silent_s:.0f} s.", hint="See the log of the run.")


def leave(core: ServerContext, endpoint: Endpoint, call: Call) -> None:
    """End a request; if its response is incomplete, the worker stops the generation."""
    call.disconnected = True
    endpoint.used_at = core.clock.monotonic()
    endpoint.waiting.pop(call.id, None)
    for replica in endpoint.replicas.values():
        if call.id in replica.calls and (call.ended or not call.taken):
            del replica.calls[call.id]
        elif call.id in replica.calls:
            core.signals.notify(_inbox(replica))
    endpoint_usage.count(core, endpoint, call)


async def poll(core: ServerContext, attempt: AttemptActor, request: RelayPoll) -> RelayedRequests:
    """Return new requests to a replica's worker; a long poll of up to `wait_s` seconds."""
    endpoint, replica = await _replica(core, attempt)
    replica.polls += 1
    try:
        return await _polled(core, endpoint, replica, attempt.attempt_id, request)
    finally:
        replica.polls -= 1
        replica.seen_at = core.clock.monotonic()


async def _polled(
    core: ServerContext, endpoint: Endpoint, replica: Replica, attempt_id: str, request: RelayPoll
) -> RelayedRequests:
    now = core.clock.monotonic()
    if request.ready and not replica.ready:
        endpoint.used_at = now
    replica.seen_at, replica.ready, replica.models = now, request.ready, request.models
    held = frozenset(request.held)
    lost = [call.id for call in replica.calls.values() if call.taken and call.id not in held]
    _notify(core, endpoint.take_back(replica, lost, now))
    endpoint.retire_older(now)
    if endpoint.is_idle(now):
        await core.write(lambda connection: endpoints.set_idle_task(connection, endpoint.seq, replica.task_id))
        replica.ending = not endpoint.calls
    _assign(core, endpoint)
    deadline = now + min(request.wait_s, _OPEN_S if replica.calls else _HOLD_S)
    while replica.attempt_id == attempt_id:
        seen = core.signals.version(_inbox(replica))
        gone = tuple(call.id for call in replica.calls.values() if call.disconnected)
        for call_id in gone:
            del replica.calls[call_id]
        requests = tuple(endpoint.outgoing(replica)) if replica.ready else ()
        end = replica.ending and not replica.calls
        left_s = deadline - core.clock.monotonic()
        if requests or gone or end or left_s <= 0 or core.signals.closed:
            return RelayedRequests(requests=requests, gone=gone, end=end)
        await core.signals.wait(_inbox(replica), left_s, seen)
    return RelayedRequests()


async def receive(core: ServerContext, attempt: AttemptActor, sent: ResponseFrames) -> FramesReceipt:
    """Store parts of responses from a replica's worker."""
    endpoint, replica = await _replica(core, attempt)
    now = replica.seen_at = core.clock.monotonic()
    gone = []
    for frame in sent.frames:
        call = replica.calls.get(frame.id)
        if call is None or call.disconnected:
            replica.calls.pop(frame.id, None)
            gone.append(frame.id)
            continue
        if frame.error is not None and not call.begun:
            # The model's process has died; the next launch answers it, or another replica.
            _notify(core, endpoint.take_back(replica, [call.id], now))
            continue
        call.put(frame, now)
        if call.ended:
            del replica.calls[call.id]
        core.signals.notify(_topic(call))
    ids = {frame.id for frame in sent.frames} | set(sent.paused)
    full = [name for name in ids if (each := replica.calls.get(name)) is not None and each.unread > FULL]
    gone += [name for name in sent.paused if name not in replica.calls]
    _assign(core, endpoint)
    return FramesReceipt(gone=tuple(gone), full=tuple(full))


async def _replica(core: ServerContext, attempt: AttemptActor) -> tuple[Endpoint, Replica]:
    state = core.state(Endpoints)
    endpoint = state.by_task.get(attempt.task_id)
    replica = None if endpoint is None else endpoint.replicas.get(attempt.task_id)
    if endpoint is None or replica is None or replica.attempt_id != attempt.attempt_id:

        def operation(connection: Connection) -> tuple[directory.Live, int]:
            return directory.of_attempt(connection, attempt)

        row, generation = await core.read(operation)
        endpoint = state.by_task[attempt.task_id] = _known(state, row)
        # Again, since another request of this worker may have been faster.
        replica = endpoint.replicas.setdefault(attempt.task_id, Replica(attempt.task_id, attempt.worker_id, generation))
    if replica.attempt_id != attempt.attempt_id:
        now = core.clock.monotonic()
        _notify(core, endpoint.take_back(replica, list(replica.calls), now))
        replica.attempt_id, replica.worker_id, replica.ready = attempt.attempt_id, attempt.worker_id, False
        # A poll of the previous attempt that is still held must not receive requests of this one.
        core.signals.notify(_inbox(replica))
    return endpoint, replica


def _known(state: Endpoints, row: directory.Live) -> Endpoint:
    found = state.by_name.get((row.project, row.name))
    if found is None or found.seq != row.seq:
        found = state.by_name[row.project, row.name] = Endpoint(row.seq, row.project, row.name, row.wait_s)
    found.wait_s, found.requests_per_minute, found.ttl_s = row.wait_s, row.requests_per_minute, row.ttl_s
    return found


def _assign(core: ServerContext, endpoint: Endpoint) -> None:
    for replica in endpoint.assign(core.clock.monotonic()):
        core.signals.notify(_inbox(replica))


def _recover(core: ServerContext, endpoint: Endpoint) -> None:
    _notify(core, endpoint.recover(core.clock.monotonic()))
    _assign(core, endpoint)


def _notify(core: ServerContext, calls: list[Call]) -> None:
    for call in calls:
        core.signals.notify(_topic(call))


async def _unavailable(core: ServerContext, endpoint: Endpoint) -> TunefleetError:
    """Return the error of a request that no replica took in time."""
    rows = await core.read(lambda connection: endpoints.tasks_of(connection, endpoint.seq))
    live = [row for row in rows if not TaskStatus(row.status).final]
    if not live and endpoint.ttl_s is not None:
        return UnavailableError(f"The endpoint {endpoint.name} was idle; the next request starts it.", retry_after_s=1)
    if not live:
        return NotFoundError(f"The endpoint {endpoint.name} has stopped.", hint="Start it again: `tunefleet serve`.")
    running = [row for row in live if row.status == TaskStatus.RUNNING]
    now = core.clock.monotonic()
    known = [each for row in running if (each := endpoint.replicas.get(row.id)) is not None]
    if known and not any(each.connected(now) for each in known):
        return UnavailableError(f"The worker of the endpoint {endpoint.name} does not respond.")
    if running:
        return UnavailableError(f"The endpoint {endpoint.name} is loading its model.")
    return UnavailableError(
        f"The endpoint {endpoint.name} waits for a worker.",
        hint=f"`tunefleet why {live[0].id}` shows what it needs.",
        retry_after_s=_QUEUED_RETRY_S,
    )


def _inbox(replica: Replica) -> str:
    return f"endpoint-in:{replica.task_id}"


def _topic(call: Call) -> str:
    return f"endpoint-out:{call.id}"
