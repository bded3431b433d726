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

TOPIC: Final = "federations"
"""Notified when a round of any federation may want something of the server."""
SETTLING: Final = "settling"
"""Notified when a training task may end because of its federation, or a federation because of its task's parts."""
FOREVER: Final = 1e11
"""Until when what a federation needs is pinned: it is let go of by name."""
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
    """Return a federation that somebody may see.

    Args:
        connection: To read with.
        who: Who asks.
        reference: Its id or its number.
        lock: Whether nobody else may change it before the end of this transaction.

    Raises:
        NotFoundError: If there is none.
        ForbiddenError: If it is none of the asker's business.
    """
    row = existing(connection, who.project, reference, lock=lock)
    may_look(who, row)
    return row


def find_to_take_part(
    connection: Connection, who: Who, reference: str, worker: str | None = None, *, lock: bool = False
) -> FederationRow:
    """Return a federation that somebody may take part in.

    Args:
        connection: To read with.
        who: Who asks.
        reference: Its id or its number.
        worker: Under which name; null for what is done under none.
        lock: As in `find`.

    Raises:
        NotFoundError: If there is none.
        ForbiddenError: If it is none of the asker's business, or takes a token that is the worker's own.
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
    """Return a federation, locked, for a caller that may close its rounds.

    Args:
        connection: Of the operation.
        who: The caller.
        reference: Its id or its number.

    Raises:
        NotFoundError: If there is none.
        ForbiddenError: If the caller may not take part, or only for one worker.
    """
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

    Args:
        who: Who asks; may look at the federation.
        row: The federation.
        worker: Whose it is.
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
    """Return a federation, whoever asks; `find` says whether they may see it.

    Raises:
        NotFoundError: If there is none.
    """
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
    """Return a federation as it is now, and keep others from changing it before the end of this transaction.

    Raises:
        NotFoundError: If it was removed meanwhile.
    """
    found = federations.by_seq(connection, row.seq, lock=True)
    if found is None:
        raise NotFoundError(f"The federation {row.id} was removed.")
    return found


def move(connection: Connection, row: FederationRow, target: FederationStatus, now: float) -> FederationRow:
    """Change the status of a federation, and tell of it.

    Args:
        connection: Of the operation.
        row: The federation, locked.
        target: Where it goes.
        now: Unix time.

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
        connection: Of the operation.
        row: The federation.
        kind: What happened, such as `federation.version`.
        now: Unix time.
        is_due: Whether a round may want something of the server now, or at another time than before.
        data: More about it.
    """
    about = {"federation": row.id, "number": row.seq, **data}
    events.append(connection, [Event(kind, now, data=about, project=row.project, federation_seq=row.seq)])
    wake(connection, topic(row.id), *([TOPIC] if is_due else []), *([] if row.task_seq is None else [SETTLING]))
