"""Lookup, spec, status changes and events of federations."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.errors import ForbiddenError, NotFoundError
from tunefleet.lifecycle import federation as lifecycle
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.orchestrator.access.permissions import FederationActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller, may_take_part, may_view, only_worker
from tunefleet.orchestrator.views import event_view
from tunefleet.schemas.api import EventView
from tunefleet.spec.options.federation_options import FederationSpec

# Published when a round of any federation may be due.
TOPIC: Final = "federations"
# Published when a training task may end because of its federation, or a federation because of its task's shards.
SETTLING: Final = "settling"
# Expiry of pins that have none: files of a federation are unpinned by holder.
FOREVER: Final = 1e11
RUNNING: Final = FederationStatus.RUNNING.value
PAUSED: Final = FederationStatus.PAUSED.value
QUEUED: Final = FederationStatus.QUEUED.value
PAGE = 500
# Fields of another worker's event that every participant may see.
_PUBLIC_FIELDS: Final = ("federation", "number", "round")


def topic(federation_id: str) -> str:
    """Return the topic of all changes to a federation; long polls wait for it."""
    return f"federation:{federation_id}"


@lru_cache(maxsize=256)
def _parsed(spec: str) -> FederationSpec:
    return FederationSpec.model_validate_json(spec)


def spec_of(row: FederationRow) -> FederationSpec:
    """Return the parsed spec of a federation."""
    return _parsed(row.spec)


def find(connection: Connection, caller: FederationCaller, reference: str, *, lock: bool = False) -> FederationRow:
    """Return a federation that the caller may see."""
    row = existing(connection, caller.project, reference, lock=lock)
    may_view(caller, row)
    return row


def find_to_take_part(
    connection: Connection, caller: FederationCaller, reference: str, worker: str | None = None, *, lock: bool = False
) -> FederationRow:
    """Return a federation that the caller may take part in.

    Args:
        worker: Worker name that the request is made under; None if it names none.
    """
    row = find(connection, caller, reference, lock=lock)
    may_take_part(caller, row, worker)
    if spec_of(row).own_tokens and _is_shared(caller):
        raise ForbiddenError(
            f"Each worker of {row.id} needs its own token, and this token belongs to no worker.",
            hint=f"`tunefleet federation token {row.id} --for NAME` creates one for the federation's owner.",
        )
    return row


def find_to_close(connection: Connection, caller: FederationCaller, reference: str) -> FederationRow:
    """Return a federation, locked, for a caller that may close its rounds."""
    row = find(connection, caller, reference, lock=True)
    may_take_part(caller, row)
    if only_worker(caller) is not None or (spec_of(row).own_tokens and _is_shared(caller)):
        raise ForbiddenError(
            f"This token cannot close rounds of {row.id}: a round has the updates of all workers.",
            hint=f"Use a key of {row.owner}, who owns {row.id}, or wait: a round closes when all updates have arrived, "
            "or at its deadline.",
        )
    return row


def may_read_updates(caller: FederationCaller, row: FederationRow, worker: str) -> bool:
    """Whether the caller may read a worker's updates.

    A worker's own token reads those of that worker. With `own_tokens`, the shared token and worker keys read none.
    """
    mine = only_worker(caller)
    return mine == worker if mine is not None else not (spec_of(row).own_tokens and _is_shared(caller))


def may_read_all_updates(caller: FederationCaller, row: FederationRow) -> bool:
    """Whether the caller may read the updates of all workers."""
    return only_worker(caller) is None and may_read_updates(caller, row, "")


def _is_shared(caller: FederationCaller) -> bool:
    """Whether several workers may share the caller's key or token."""
    return caller.worker is None if isinstance(caller, FederationActor) else caller.role == "worker"


def existing(connection: Connection, project: str, reference: str, *, lock: bool = False) -> FederationRow:
    """Return a federation without an access check; `find` adds one."""
    row = federations.find(connection, project, reference, lock=lock)
    if row is None:
        raise NotFoundError(f"Federation {reference} not found.", hint="`tunefleet federation ls` lists them.")
    return row


def how_to_start(row: FederationRow) -> str | None:
    """Return the hint for a federation that is not running; None if it has ended, because it cannot be restarted."""
    if FederationStatus(row.status).final:
        return None
    return f"Start it with `tunefleet federation start {row.id}`."


def locked(connection: Connection, row: FederationRow) -> FederationRow:
    """Reload a federation's row and lock it until the end of the transaction."""
    found = federations.by_seq(connection, row.seq, lock=True)
    if found is None:
        raise NotFoundError(f"Federation {row.id} was removed.")
    return found


def move(connection: Connection, row: FederationRow, target: FederationStatus, now: float) -> FederationRow:
    """Change the status of a federation, and publish an event.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change.
    """
    lifecycle.move(FederationStatus(row.status), target)
    changes: dict[str, Any] = {"status": target.value}
    if target is FederationStatus.RUNNING and row.started_at is None:
        changes["started_at"] = now
    if target.final:
        changes["finished_at"] = now
    federations.change(connection, row.seq, changes)
    moved = row._replace(**changes)
    publish_event(connection, moved, f"federation.{target.value}", now)
    return moved


def publish_event(
    connection: Connection, row: FederationRow, kind: str, now: float, *, is_due: bool = True, **data: Any
) -> None:
    """Append an event of a federation, and notify its subscribers.

    Args:
        kind: Event name, such as `federation.version`.
    """
    about = {"federation": row.id, "number": row.seq, **data}
    events.append(connection, [Event(kind, now, data=about, project=row.project, federation_seq=row.seq)])
    wake(connection, topic(row.id), *([TOPIC] if is_due else []), *([] if row.task_seq is None else [SETTLING]))


async def events_after(core: ServerContext, caller: FederationCaller, reference: str, event_id: int) -> list[EventView]:
    """Return a page of a federation's events after the given one, oldest first."""

    def operation(connection: Connection) -> list[EventView]:
        row = find(connection, caller, reference)
        found = events.after(connection, event_id, project=row.project, limit=PAGE, federation_seq=row.seq)
        return [_filtered(caller, row, event_view(each)) for each in found]

    return await core.read(operation)


def _filtered(caller: FederationCaller, row: FederationRow, event: EventView) -> EventView:
    """Return an event without the details of updates that the caller may not see."""
    worker = event.data.get("worker")
    if worker is not None and not may_read_updates(caller, row, worker):
        return event.model_copy(update={"data": {key: event.data[key] for key in _PUBLIC_FIELDS if key in event.data}})
    if worker is None and not may_read_all_updates(caller, row):
        # A round's error quotes the error of one worker's update.
        return event.model_copy(update={"data": {key: value for key, value in event.data.items() if key != "error"}})
    return event


async def feed_start(
    core: ServerContext, caller: FederationCaller, reference: str, event_id: int | None
) -> tuple[str, int]:
    """Return a federation's id and the event to resume after; by default the newest one."""

    def operation(connection: Connection) -> tuple[str, int]:
        row = find(connection, caller, reference)
        return row.id, events.last_id(connection) if event_id is None else event_id

    return await core.read(operation)
