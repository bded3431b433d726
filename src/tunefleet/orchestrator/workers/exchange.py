"""The server's end of the link: register a worker, and exchange what both sides have to say.

An exchange that says something is one operation in the store; then it is held open until there is something to
answer. It is the lease's renewal too: who cannot receive cannot renew.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tunefleet.db.fleet import worker_rows
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError, TunefleetError
from tunefleet.observability import context
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.workers import exchange_transaction, registration
from tunefleet.orchestrator.workers.exchange_transaction import Answer, Said
from tunefleet.orchestrator.workers.presence import Presence
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest

_NOTHING: Final = ExchangeReply()
_HOLD_SHARE: Final = 3.0
"""An exchange is held for this part of the patience with a silent worker."""


# A proxy gives an answer up after a minute of silence, as nginx does unless it is told otherwise.
_MAX_HOLD_S: Final = 45.0


def hold_s(core: Core) -> float:
    """Return for how long an exchange may be held open."""
    return min(core.settings.lost_after_s / _HOLD_SHARE, _MAX_HOLD_S)


async def register(core: Core, actor: Actor, request: RegisterRequest) -> RegisterReply:
    """Take up a worker's process: it fences the one before it, and says what it still holds.

    Raises:
        ForbiddenError: If the key is not for workers, or the id belongs to another key.
        ConflictError: If a living worker with another state folder has the id.
    """
    _may_work(actor)
    request = registration.with_clock(actor, request, core.clock.wall())
    held = exchange_transaction.attempt_ids(core.secret, request.holding)
    alive = core.fleet.silence_s(request.worker_id) < core.settings.lost_after_s
    known = set(held.values())
    before = core.fleet.presences.get(request.worker_id)
    room = {} if before is None else before.limits
    if before is not None:
        # What becomes free by this is not offered to the room of the process that it fences.
        before.limits = {}
    operation = partial(
        registration.apply, actor=actor, request=request, held=known, alive=alive, now=core.clock.wall()
    )
    try:
        with core.fleet.working_off(request.worker_id):
            kept = await core.write(operation)
            presence = Presence(request.session, project=actor.project)
            core.fleet.renew(request.worker_id, presence, core.clock.wall())
    except TunefleetError:
        if before is not None:
            before.limits = room
        raise
    core.fleet.worked_at[request.worker_id] = core.clock.monotonic()
    # Whatever the process before it still waits for is answered now, and refused the next time.
    core.signals.notify(exchange_transaction.topic(request.worker_id))
    return RegisterReply(
        keep=tuple(token for token, attempt_id in held.items() if attempt_id in kept),
        drop=tuple(token for token in request.holding if held.get(token) not in kept),
        hold_s=hold_s(core),
        lost_after_s=core.settings.lost_after_s,
        clock_ahead_s=request.capabilities.clock_ahead_s,
    )


async def exchange(core: Core, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
    """Take what a worker says, and answer as soon as there is something to answer; see `_exchange`."""
    with context.about(worker_id=request.worker_id):
        try:
            return await _counted(core, actor, request)
        except ConflictError:
            if request.leaves:  # it says so again, or another has come after it: there is nothing to tell it
                return _NOTHING
            raise


async def _counted(core: Core, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
    meters = core.meters
    if meters is None:
        return await _exchange(core, actor, request)
    outcome = "refused"
    try:
        reply = await _exchange(core, actor, request)
        outcome = "empty" if reply == _NOTHING else "answered"
        if reply.offers:
            meters.offers_sent.inc(len(reply.offers))
        return reply
    finally:
        meters.exchanges.labels(outcome).inc()


async def _exchange(core: Core, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
    """Take what a worker says, and answer as soon as there is something to answer.

    A newer exchange of the session makes an older one return at once, empty.

    Raises:
        ForbiddenError: If the key is not for workers, or the id belongs to another key.
        NotFoundError: If the worker is not registered; it must register.
        ConflictError: If another process took over the worker; this one must end.
    """
    _may_work(actor)
    presence = await _present(core, actor, request)
    said = exchange_transaction.read(core.secret, request)
    # To the millisecond, so that the time that is shown live is the time that is stored.
    now = round(core.clock.wall(), 3)
    if presence.hear(request.load, now, ended=bool(request.finishes), delivering=said.delivering):
        core.signals.notify("placement")
    presence.fetching = said.fetching
    if request.load is not None:
        core.fleet.told[request.worker_id] = (now, request.load)
    if request.holding or request.finishes:
        core.fleet.worked_at[request.worker_id] = core.clock.monotonic()
    presence.polls += 1
    poll, topic = presence.polls, exchange_transaction.topic(request.worker_id)
    if poll > 1:
        core.signals.notify(topic)
    seen = core.signals.version(topic)
    with core.fleet.working_off(request.worker_id):
        answer = await _first_answer(core, presence, request, said)
    ends_at = core.clock.monotonic() + min(max(request.wait_s, 0.0), hold_s(core))
    while not _worth_saying(core, presence, answer) and not core.signals.closed:
        remaining_s = ends_at - core.clock.monotonic()
        if remaining_s <= 0:
            break
        seen = await core.signals.wait(topic, remaining_s, seen)
        if presence.polls != poll or core.fleet.presences.get(request.worker_id) is not presence:
            return ExchangeReply()
        with core.fleet.working_off(request.worker_id):
            answer = await core.read(
                partial(exchange_transaction.answer, worker_id=request.worker_id, said=said, secret=core.secret)
            )
    presence.note(answer.keys, core.clock.monotonic())
    if said.leaves:
        core.fleet.presences.pop(request.worker_id, None)
    return answer.reply


async def _first_answer(core: Core, presence: Presence, request: ExchangeRequest, said: Said) -> Answer:
    stalled = frozenset(said.stalled)
    if said.anything or presence.lost or stalled != presence.stalled:
        returns = presence.lost
        operation = partial(
            exchange_transaction.apply, worker_id=request.worker_id, said=said, secret=core.secret,
            now=core.clock.wall(),
            returns=returns, blobs=core.blobs, patience_s=core.settings.lost_after_s,
        )  # fmt: skip
        answer = await core.write(operation)
        presence.stalled = stalled
        if returns:  # else it was perhaps given up while this waited: its next exchange says that it is back
            presence.lost = False
    else:
        answer = await core.read(
            partial(exchange_transaction.answer, worker_id=request.worker_id, said=said, secret=core.secret)
        )
    # What the worker takes in all: what it knows of, and what it wants on top. An offer that is still on its way to
    # it is not counted twice.
    limits = {str(name): answer.known.get(name, 0) + count for name, count in request.want.items()}
    if limits != presence.limits:
        presence.limits = limits
        core.signals.notify("placement")
    return answer


def _worth_saying(core: Core, presence: Presence, answer: Answer) -> bool:
    return answer.urgent or presence.worth_saying(answer.keys, core.clock.monotonic())


async def _present(core: Core, actor: Actor, request: ExchangeRequest) -> Presence:
    presence = core.fleet.presences.get(request.worker_id)
    if presence is None:
        row = await core.read(partial(worker_rows.get, worker_id=request.worker_id))
        if row is None:
            raise NotFoundError(f"The worker {request.worker_id} is not registered.", hint="It must register first.")
        registration.refuse_foreign_key(actor, row)
        presence = core.fleet.presences.setdefault(
            request.worker_id, Presence(row.session, lost=row.status != "online", project=row.project)
        )
    if presence.session != request.session:
        raise ConflictError(
            f"Another process took over the worker {request.worker_id}.", hint="This one must end; its jobs go on."
        )
    core.fleet.renew(request.worker_id, presence, core.clock.wall())
    return presence


def _may_work(actor: Actor) -> None:
    if actor.role not in {"worker", "admin"}:
        raise ForbiddenError(f"A {actor.role} key cannot be used by a worker.", hint="Use a worker key.")
