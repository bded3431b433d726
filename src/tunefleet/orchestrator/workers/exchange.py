"""The server side of the worker protocol: registration and message exchange.

An exchange with content is one transaction in the store; then it is held open (long poll) until there is something to
send. It also renews the worker's lease: a worker that cannot receive cannot renew.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore, is_digest
from tunefleet.db.fleet import worker_rows
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError, TooLargeError, TunefleetError
from tunefleet.observability import context
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet, Presence
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.workers import exchange_transaction, registration
from tunefleet.orchestrator.workers.exchange_transaction import ExchangeResult, WorkerReport
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest

_NOTHING: Final = ExchangeReply()
# An exchange is held for at most a third of the time after which a silent worker is lost.
_HOLD_DIVISOR: Final = 3.0
# Proxies drop a silent response after a minute (nginx: `proxy_read_timeout`).
_MAX_HOLD_S: Final = 45.0


def hold_s(core: ServerContext) -> float:
    """Return how long an exchange may be held open, in seconds."""
    return min(core.settings.lost_after_s / _HOLD_DIVISOR, _MAX_HOLD_S)


async def register(core: ServerContext, actor: Actor, request: RegisterRequest) -> RegisterReply:
    """Register a worker's process with the attempts it still holds; the previous process is fenced off.

    Raises:
        ForbiddenError: If the key is not for workers, or the id belongs to another key.
        ConflictError: If a live worker with another state folder has the id.
    """
    _require_worker_key(actor)
    request = registration.with_clock(actor, request, core.clock.wall())
    held = exchange_transaction.attempt_ids(core.secret, request.holding)
    alive = core.state(Fleet).silence_s(request.worker_id) < core.settings.lost_after_s
    known = set(held.values())
    before = core.state(Fleet).presences.get(request.worker_id)
    limits_before = {} if before is None else before.limits
    if before is not None:
        # No offers to the process that is being fenced off: capacity that this frees is not its own any more.
        before.limits = {}
    operation = partial(
        registration.apply, actor=actor, request=request, held=known, alive=alive, now=core.clock.wall()
    )
    try:
        with core.state(Fleet).processing(request.worker_id):
            kept = await core.write(operation)
            presence = Presence(request.session, project=actor.project)
            core.state(Fleet).renew(request.worker_id, presence, core.clock.wall())
    except TunefleetError:
        if before is not None:
            before.limits = limits_before
        raise
    core.state(Fleet).worked_at[request.worker_id] = core.clock.monotonic()
    # Ends the long poll of the previous process; its next exchange is refused.
    core.signals.notify(exchange_transaction.topic(request.worker_id))
    return RegisterReply(
        keep=tuple(token for token, attempt_id in held.items() if attempt_id in kept),
        drop=tuple(token for token in request.holding if held.get(token) not in kept),
        hold_s=hold_s(core),
        lost_after_s=core.settings.lost_after_s,
        clock_ahead_s=request.capabilities.clock_ahead_s,
    )


async def exchange(core: ServerContext, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
    """Process a worker's message and reply as soon as there is something to send; see `_exchange`."""
    with context.log_ids(worker_id=request.worker_id):
        try:
            return await _measured(core, actor, request)
        except ConflictError:
            # A repeated sign-off, or another process has taken over: there is nothing to send.
            if request.leaves:
                return _NOTHING
            raise


async def _measured(core: ServerContext, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
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


async def _exchange(core: ServerContext, actor: Actor, request: ExchangeRequest) -> ExchangeReply:
    """Process a worker's message and reply as soon as there is something to send.

    A newer exchange of the session makes an older one return empty immediately.

    Raises:
        ForbiddenError: If the key is not for workers, or the id belongs to another key.
        NotFoundError: If the worker is not registered; it must register.
        ConflictError: If another process took over the worker; this one must end.
    """
    _require_worker_key(actor)
    presence = await _find_presence(core, actor, request)
    report = exchange_transaction.read(core.secret, request)
    # Rounded as in the store, so that live and stored times are equal.
    now = round(core.clock.wall(), 3)
    if presence.record_load(request.load, now, ended=bool(request.finishes), delivering=report.delivering):
        core.signals.notify("placement")
    presence.fetching = report.fetching
    if request.load is not None:
        core.state(Fleet).load_reports[request.worker_id] = (now, request.load)
    if request.holding or request.finishes:
        core.state(Fleet).worked_at[request.worker_id] = core.clock.monotonic()
    presence.polls += 1
    # A retried request after a lost connection: the older exchange of the session must return.
    poll, topic = presence.polls, exchange_transaction.topic(request.worker_id)
    if poll > 1:
        core.signals.notify(topic)
    # Before the first read of the store, so that no change in between is missed.
    seen = core.signals.version(topic)
    with core.state(Fleet).processing(request.worker_id):
        result = await _first_result(core, presence, request, report)
    ends_at = core.clock.monotonic() + min(max(request.wait_s, 0.0), hold_s(core))
    while not _has_unsent(core, presence, result) and not core.signals.closed:
        remaining_s = ends_at - core.clock.monotonic()
        if remaining_s <= 0:
            break
        seen = await core.signals.wait(topic, remaining_s, seen)
        if presence.polls != poll or core.state(Fleet).presences.get(request.worker_id) is not presence:
            return ExchangeReply()
        with core.state(Fleet).processing(request.worker_id):
            result = await core.read(
                partial(
                    exchange_transaction.build_reply, worker_id=request.worker_id, report=report, secret=core.secret
                )
            )
    presence.record_sent(result.keys, core.clock.monotonic())
    if report.leaves:
        core.state(Fleet).presences.pop(request.worker_id, None)
    return result.reply


async def _first_result(
    core: ServerContext, presence: Presence, request: ExchangeRequest, report: WorkerReport
) -> ExchangeResult:
    stalled = frozenset(report.stalled)
    if report.anything or presence.lost or stalled != presence.stalled:
        returns = presence.lost
        operation = partial(
            exchange_transaction.apply, worker_id=request.worker_id, report=report, secret=core.secret,
            now=core.clock.wall(),
            returns=returns, blobs=core.blobs, patience_s=core.settings.lost_after_s,
        )  # fmt: skip
        result = await core.write(operation)
        presence.stalled = stalled
        if returns:  # otherwise it may have been declared lost meanwhile; its next exchange brings it back
            presence.lost = False
    else:
        result = await core.read(
            partial(exchange_transaction.build_reply, worker_id=request.worker_id, report=report, secret=core.secret)
        )
    # The worker's limit is what it knows it holds plus what it wants. An offer that is still in transit is in neither,
    # so it is not counted twice.
    limits = {str(name): result.known.get(name, 0) + count for name, count in request.want.items()}
    if limits != presence.limits:
        presence.limits = limits
        core.signals.notify("placement")
    return result


def _has_unsent(core: ServerContext, presence: Presence, result: ExchangeResult) -> bool:
    return result.urgent or presence.has_unsent(result.keys, core.clock.monotonic())


async def _find_presence(core: ServerContext, actor: Actor, request: ExchangeRequest) -> Presence:
    presence = core.state(Fleet).presences.get(request.worker_id)
    if presence is None:
        row = await core.read(partial(worker_rows.get, worker_id=request.worker_id))
        if row is None:
            raise NotFoundError(f"Worker {request.worker_id} is not registered.", hint="Register it first.")
        registration.refuse_foreign_key(actor, row)
        presence = core.state(Fleet).presences.setdefault(
            request.worker_id, Presence(row.session, lost=row.status != "online", project=row.project)
        )
    if presence.session != request.session:
        raise ConflictError(
            f"Another process took over worker {request.worker_id}.", hint="Stop this process; its jobs continue."
        )
    core.state(Fleet).renew(request.worker_id, presence, core.clock.wall())
    return presence


def _require_worker_key(actor: Actor) -> None:
    if actor.role not in {"worker", "admin"}:
        raise ForbiddenError(f"A {actor.role} key cannot be used by a worker.", hint="Use a worker key.")


async def keep_message(core: ServerContext, body: bytes, token: str) -> str:
    """Store a message of an attempt, and return its digest.

    Raises:
        AuthError: If the attempt is void.
    """
    attempt = await api_keys.authenticate_attempt(core, token)
    digest = hashlib.sha256(body).hexdigest()
    await asyncio.to_thread(_write, core.blobs, digest, body)
    await artifacts.stored(core, attempt, digest, len(body))
    return digest


async def fetch_message(core: ServerContext, digest: str) -> bytes:
    """Return a stored message.

    Raises:
        NotFoundError: If there is none with this digest.
        TooLargeError: If it exceeds the maximum body size.
    """
    return await asyncio.to_thread(_read, core.blobs, digest, core.settings.max_body_bytes)


def _read(blobs: BlobStore, digest: str, max_bytes: int) -> bytes:
    size = blobs.find(digest) if is_digest(digest) else None
    if size is None:
        raise NotFoundError(f"Message {digest[:64]} not found.")
    if size > max_bytes:
        raise TooLargeError(f"The message has {size:,} bytes; the limit is {max_bytes:,}.")
    return blobs.read(digest)


def _write(blobs: BlobStore, digest: str, body: bytes) -> None:
    if blobs.has(digest):
        return
    with blobs.append(digest, blobs.partial_size(digest), len(body)) as upload:
        upload.write(body[upload.offset :])
        upload.finish()
