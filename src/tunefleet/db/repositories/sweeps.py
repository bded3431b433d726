"""Sweeps and their trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from tunefleet.db import project_queries
from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.sweeps import sweep_trials, sweeps

_at = sweeps.c
# Same text as in the partial index, so that it is used.
_ACTIVE: Final = text("sweeps.status IN ('running', 'stopping')")
_CHANGED: Final = ("state", "attributes", "evaluations", "value", "steps", "gpu_s", "error", "finished_at")


class SweepRow(NamedTuple):
    """A sweep; `spec` and `inputs` are JSON."""

    seq: int
    id: str
    project: str
    name: str
    owner: str
    status: str
    outcome: str | None
    reason: str | None
    spec: str
    document: str
    inputs: str
    idempotency_key: str | None
    created_at: float
    finished_at: float | None


class TrialRow(NamedTuple):
    """A trial; `parameters`, `attributes` and `evaluations` are JSON."""

    sweep_seq: int
    number: int
    state: str
    task_id: str | None
    parameters: str
    attributes: str
    evaluations: str
    value: float | None
    steps: int | None
    gpu_s: float
    error: str | None
    created_at: float
    finished_at: float | None


_NEW_TRIAL: Final = Bulk(insert(sweep_trials), TrialRow._fields)
_CHANGE_TRIAL: Final = Bulk(
    update(sweep_trials)
    .where(sweep_trials.c.sweep_seq == bindparam("b_seq"), sweep_trials.c.number == bindparam("b_number"))
    .values({name: bindparam(f"b_{name}") for name in _CHANGED}),
    ["b_seq", "b_number", *(f"b_{name}" for name in _CHANGED)],
)


def insert_one(connection: Connection, values: Mapping[str, Any]) -> SweepRow:
    """Store a sweep; the database assigns its `seq`."""
    seq = connection.execute(insert(sweeps).returning(_at.seq), dict(values)).scalar_one()
    row = by_seq(connection, seq)
    assert row is not None, "it was just stored"
    return row


def by_seq(connection: Connection, seq: int, *, lock: bool = False) -> SweepRow | None:
    """Return a sweep by its number."""
    query = select(sweeps).where(_at.seq == seq)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return SweepRow(*row) if row else None


def by_prefix(connection: Connection, prefix: str, project: str, limit: int) -> list[SweepRow]:
    """Return sweeps of a project whose ids begin with a prefix."""
    query = project_queries.with_prefix(sweeps, prefix, project, limit)
    return [SweepRow(*row) for row in connection.execute(query)]


def by_idempotency_key(connection: Connection, *, project: str, owner: str, key: str) -> SweepRow | None:
    """Return the sweep that an owner created with this key."""
    query = select(sweeps).where(_at.project == project, _at.owner == owner, _at.idempotency_key == key)
    row = connection.execute(query).first()
    return SweepRow(*row) if row else None


def page(
    connection: Connection,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    owner: str | None = None,
    statuses: Sequence[str] | None = None,
) -> list[SweepRow]:
    """Return sweeps, newest first."""
    query = project_queries.newest_first(
        sweeps, project=project, limit=limit, before=before, owner=owner, statuses=statuses
    )
    return [SweepRow(*row) for row in connection.execute(query)]


def active(connection: Connection) -> list[SweepRow]:
    """Return the sweeps that have not ended, oldest first."""
    return [SweepRow(*row) for row in connection.execute(select(sweeps).where(_ACTIVE).order_by(_at.seq))]


def change(connection: Connection, row: SweepRow, values: Mapping[str, Any]) -> SweepRow:
    """Change columns of a sweep, and return the changed row."""
    connection.execute(update(sweeps).where(_at.seq == row.seq).values(dict(values)))
    return row._replace(**values)


def delete_one(connection: Connection, seq: int) -> None:
    """Delete a sweep with its trials."""
    connection.execute(delete(sweep_trials).where(sweep_trials.c.sweep_seq == seq))
    connection.execute(delete(sweeps).where(_at.seq == seq))


def trials(connection: Connection, seqs: Sequence[int]) -> dict[int, list[TrialRow]]:
    """Return the trials of sweeps in order, by the sweep's `seq`; sweeps without trials are omitted."""
    found: dict[int, list[TrialRow]] = {}
    query = select(sweep_trials).where(sweep_trials.c.sweep_seq.in_(list(seqs)))
    for row in connection.execute(query.order_by(sweep_trials.c.sweep_seq, sweep_trials.c.number)):
        found.setdefault(row.sweep_seq, []).append(TrialRow(*row))
    return found


def add_trial(connection: Connection, row: TrialRow) -> None:
    """Store a new trial; its number is unique in the sweep."""
    _NEW_TRIAL.run(connection, [row])


def store_trials(connection: Connection, rows: Iterable[TrialRow]) -> None:
    """Store changed trials."""
    changed = [(row.sweep_seq, row.number, *(getattr(row, name) for name in _CHANGED)) for row in rows]
    if changed:
        _CHANGE_TRIAL.run(connection, changed)
