"""Where a federation stands: find it, read what was asked of it, move it, and tell of it."""

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
from tunefleet.orchestrator.federation.participants import FederationActor, Who, may_look, may_take_part, only_worker
from tunefleet.spec.options.federation_options import FederationSpec

# Notified when a round of any federation may want something of the server.
TOPIC: Final = "federations"
# Notified when a training task may end because of its federation, or a federation because of its task's parts.
SETTLING: Final = "settling"
# Until when what a federation needs is pinned: it is let go of by name.
FOREVER: Final = 1e11
RUNNING: Final = FederationStatus.RUNNING.value
PAUSED: Final = FederationStatus.PAUSED.value
QUEUED: Final = FederationStatus.QUEUED.value


def topic(federation_id: str) -> str:
    """Return what is notified when anything about a federation changes; long polls wait for it."""
    return f"federation:{federation_id}"


@lru_cache(maxsize=256)
def _parsed(spec: str) -> FederationSpec:
    return FederationSpec.model_validate_json(spec)


def spec_of(row: FederationRow) -> FederationSpec:
    """Return what was asked of a federation."""
    return _parsed(row.spec)


def find(connection: Connection, who: Who, reference: str, *, lock: bool = False) -> FederationRow:
    """Return a federation that somebody may see."""
    row = existing(connection, who.project, reference, lock=lock)
    may_look(who, row)
    return row


def find_to_take_part(
    connection: Connection, who: Who, reference: str, worker: str | None = None, *, lock: bool = False
) -> FederationRow:
    """Return a federation that somebody may take part in.

    Args:
        worker: Under which name; null for what is done under none.
    """
    row = find(connection, who, reference, lock=lock)
    may_take_part(who, row, worker)
    if spec_of(row).own_tokens and _is_shared(who):
        raise ForbiddenError(
            f"Each worker of {row.id} has a token of its own, and this is not one of them.",
            hint=f"`tunefleet federation token {row.id} --for NAME` makes it, for the federation's owner.",
        )
    return row


def find_to_close(connection: Connection, who: Who, reference: str) -> FederationRow:
    """Return a federation, locked, for a caller that may close its rounds."""
    row = find(connection, who, reference, lock=True)
    may_take_part(who, row)
    if only_worker(who) is not None or (spec_of(row).own_tokens and _is_shared(who)):
        raise ForbiddenError(
            f"This token does not close rounds of {row.id}: a round has the updates of all workers.",
            hint=f"Use a key of {row.owner}, who owns {row.id}, or wait: a round closes when its updates are there, or "
            "at its deadline.",
        )
    return row


def sees(who: Who, row: FederationRow, worker: str) -> bool:
    """Whether somebody may read what a worker has sent, and what became of it.

    A worker's own token reads that worker's. Where each worker has one, the token and the keys that several workers may
    have read nobody's.
    """
    mine = only_worker(who)
    return mine == worker if mine is not None else not (spec_of(row).own_tokens and _is_shared(who))


def sees_all(who: Who, row: FederationRow) -> bool:
    """Whether somebody may read what each worker has sent."""
    return only_worker(who) is None and sees(who, row, "")


def _is_shared(who: Who) -> bool:
    """Whether several workers may have the same key or token."""
    return who.worker is None if isinstance(who, FederationActor) else who.role == "worker"


def existing(connection: Connection, project: str, reference: str, *, lock: bool = False) -> FederationRow:
    """Return a federation, whoever asks; `find` says whether they may see it."""
    row = federations.find(connection, project, reference, lock=lock)
    if row is None:
        raise NotFoundError(f"There is no federation {reference}.", hint="`tunefleet federation ls` lists them.")
    return row


def how_to_start(row: FederationRow) -> str | None:
    """Return the hint for a federation that does not run; null if it has ended, since it never runs again."""
    if FederationStatus(row.status).final:
        return None
    return f"`tunefleet federation start {row.id}` lets it run."


def locked(connection: Connection, row: FederationRow) -> FederationRow:
    """Return a federation as it is now, and keep others from changing it before the end of this transaction."""
    found = federations.by_seq(connection, row.seq, lock=True)
    if found is None:
        raise NotFoundError(f"The federation {row.id} was removed.")
    return found


def move(connection: Connection, row: FederationRow, target: FederationStatus, now: float) -> FederationRow:
    """Change the status of a federation, and tell of it.

    Raises:
        IllegalTransition: If the lifecycle has no such change.
    """
    lifecycle.move(FederationStatus(row.status), target)
    changes: dict[str, Any] = {"status": target.value}
    if target is FederationStatus.RUNNING and row.started_at is None:
        changes["started_at"] = now
    if target.final:
        changes["finished_at"] = now
    federations.change(connection, row.seq, changes)
    moved = row._replace(**changes)
    tell(connection, moved, f"federation.{target.value}", now)
    return moved


def tell(
    connection: Connection, row: FederationRow, kind: str, now: float, *, is_due: bool = True, **data: Any
) -> None:
    """Append an event of a federation, and wake who waits for news of it.

    Args:
        kind: What happened, such as `federation.version`.
    """
    about = {"federation": row.id, "number": row.seq, **data}
    events.append(connection, [Event(kind, now, data=about, project=row.project, federation_seq=row.seq)])
    wake(connection, topic(row.id), *([TOPIC] if is_due else []), *([] if row.task_seq is None else [SETTLING]))
