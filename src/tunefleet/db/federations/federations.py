"""Federations, their members, and their valid tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from tunefleet.db import project_queries
from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.core import task_inputs, tasks
from tunefleet.db.tables.federation import (
    federation_chunks,
    federation_members,
    federation_rounds,
    federation_tokens,
    federation_updates,
    federation_versions,
    federations,
)
from tunefleet.lifecycle.federation import FINAL
from tunefleet.lifecycle.task import TaskStatus

_UNSETTLED = (
    select(federations.c.task_seq)
    .join(tasks, tasks.c.seq == federations.c.task_seq)
    .where(
        federations.c.status.in_([status.value for status in FINAL]),
        tasks.c.status == TaskStatus.RUNNING.value,
    )
    .order_by(federations.c.task_seq)
)
_INSERT = insert(federations).returning(federations.c.seq)
# Built once: an upload runs all of these, and building a statement takes longer than executing it.
_BY_SEQ = select(federations).where(federations.c.seq == bindparam("seq"))
_LOCKED = _BY_SEQ.with_for_update()
_BY_ID = select(federations).where(federations.c.id == bindparam("id"))
_LOCKED_BY_ID = _BY_ID.with_for_update()
_MEMBER = select(federation_members).where(
    federation_members.c.federation_seq == bindparam("seq"), federation_members.c.worker == bindparam("worker")
)
_KEY: Final = ("federation_seq", "worker")
_REST: Final = (
    "callback_url", "updates", "num_examples", "step", "round", "loss", "values_digest", "joined_at", "seen_at",
    "attempt",
)  # fmt: skip
_NEW_MEMBER = Bulk(insert(federation_members), [*_KEY, *_REST])
_CHANGE_MEMBER = (
    update(federation_members)
    .where(*(federation_members.c[name] == bindparam(f"b_{name}") for name in _KEY))
    .values({name: bindparam(f"b_{name}") for name in _REST})
)
_token = federation_tokens.c


class FederationRow(NamedTuple):
    """A federation; `spec` and `contract` are JSON, `seq` is its number, `task_seq` that of its training task."""

    seq: int
    id: str
    project: str
    name: str
    owner: str
    status: str
    spec: str
    contract: str | None
    callback_secret: str
    version: int
    round: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    task_seq: int | None = None


class MemberRow(NamedTuple):
    """A known worker of a federation."""

    federation_seq: int
    worker: str
    callback_url: str | None
    updates: int
    num_examples: int
    step: int | None
    round: int | None
    loss: float | None
    values_digest: str | None
    joined_at: float
    seen_at: float
    attempt: int | None = None


def insert_one(connection: Connection, values: Mapping[str, Any]) -> FederationRow:
    """Store a federation; the database assigns its `seq`."""
    seq = connection.execute(_INSERT, dict(values)).scalar_one()
    row = by_seq(connection, seq)
    assert row is not None, "it was just stored"
    return row


def by_seq(connection: Connection, seq: int, *, lock: bool = False) -> FederationRow | None:
    """Return a federation by its number."""
    row = connection.execute(_LOCKED if lock else _BY_SEQ, {"seq": seq}).first()
    return FederationRow(*row) if row else None


def by_id(connection: Connection, id_: str) -> FederationRow | None:
    """Return a federation by its id."""
    row = connection.execute(_BY_ID, {"id": id_}).first()
    return FederationRow(*row) if row else None


def of_tasks(connection: Connection, seqs: Sequence[int], *, lock: bool = False) -> dict[int, FederationRow]:
    """Return the federations that tasks created, by the task's `seq`."""
    if not seqs:
        return {}
    query = select(federations).where(federations.c.task_seq.in_(list(seqs))).order_by(federations.c.seq)
    rows = (FederationRow(*row) for row in connection.execute(query.with_for_update() if lock else query))
    return {row.task_seq: row for row in rows if row.task_seq is not None}


def unsettled(connection: Connection) -> list[int]:
    """Return the `seq` of the running tasks whose federation has ended."""
    return list(connection.execute(_UNSETTLED).scalars())


def readers(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the federations of these with a version that an unfinished task reads, and one such task of each."""
    at, final = federation_versions.c, [status.value for status in TaskStatus if status.final]
    query = (
        select(at.federation_seq, tasks.c.id)
        .join(task_inputs, task_inputs.c.artifact_id == at.artifact_id)
        .join(tasks, tasks.c.id == task_inputs.c.task_id)
        .where(at.federation_seq.in_(list(seqs)), tasks.c.status.not_in(final))
        .order_by(tasks.c.seq.desc())
    )
    return {seq: reader for seq, reader in connection.execute(query)}


def find(connection: Connection, project: str | None, reference: str, *, lock: bool = False) -> FederationRow | None:
    """Return a federation of a project by its id or number.

    Args:
        project: The caller's project; `None` for a request with a signed link.
    """
    if reference.isascii() and reference.isdigit() and len(reference) <= 18:
        row = by_seq(connection, int(reference), lock=lock)
    else:
        found = connection.execute(_LOCKED_BY_ID if lock else _BY_ID, {"id": reference}).first()
        row = FederationRow(*found) if found else None
    return row if row is not None and project in {None, row.project} else None


def page(
    connection: Connection,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    owner: str | None = None,
    statuses: Sequence[str] | None = None,
) -> list[FederationRow]:
    """Return federations, newest first."""
    query = project_queries.newest_first(
        federations, project=project, limit=limit, before=before, owner=owner, statuses=statuses
    )
    return [FederationRow(*row) for row in connection.execute(query)]


def change(connection: Connection, seq: int, values: Mapping[str, Any]) -> None:
    """Change columns of a federation."""
    connection.execute(update(federations).where(federations.c.seq == seq).values(dict(values)))


def member(connection: Connection, seq: int, worker: str) -> MemberRow | None:
    """Return a member."""
    row = connection.execute(_MEMBER, {"seq": seq, "worker": worker}).first()
    return MemberRow(*row) if row else None


def members(connection: Connection, seq: int) -> list[MemberRow]:
    """Return the members of a federation by name."""
    at = federation_members.c
    query = select(federation_members).where(at.federation_seq == seq).order_by(at.worker)
    return [MemberRow(*row) for row in connection.execute(query)]


def member_counts(connection: Connection, seqs: Sequence[int]) -> dict[int, int]:
    """Return the number of members of federations; those without members are omitted."""
    at = federation_members.c
    query = select(at.federation_seq, func.count()).where(at.federation_seq.in_(list(seqs))).group_by(at.federation_seq)
    return {seq: count for seq, count in connection.execute(query)}


def put_member(connection: Connection, row: MemberRow) -> None:
    """Store a member, new or changed."""
    values = {f"b_{name}": value for name, value in row._asdict().items()}
    if connection.execute(_CHANGE_MEMBER, values).rowcount == 0:
        _NEW_MEMBER.run(connection, [row])


def forget_values(connection: Connection, seq: int, workers: Sequence[str]) -> None:
    """Clear the digest of members' last updates, so that they can send the same values again."""
    at = federation_members.c
    here = (at.federation_seq == seq, at.worker.in_(list(workers)))
    connection.execute(update(federation_members).where(*here).values(values_digest=None))


def delete_one(connection: Connection, seq: int) -> None:
    """Delete a federation with its members, rounds, updates, versions and chunks; pins and artifacts stay."""
    for table in (federation_members, federation_rounds, federation_updates, federation_versions, federation_chunks):
        connection.execute(delete(table).where(table.c.federation_seq == seq))
    connection.execute(delete(federations).where(federations.c.seq == seq))


class TokenRow(NamedTuple):
    """Token state of a federation: number of replacements, and how long the previous token stays valid."""

    federation_id: str
    serial: int = 0
    old_until: float | None = None


def token(connection: Connection, federation_id: str) -> TokenRow:
    """Return the token state of a federation; without a replacement there is no row, and the serial is 0."""
    row = connection.execute(select(federation_tokens).where(_token.federation_id == federation_id)).first()
    return TokenRow(*row) if row else TokenRow(federation_id)


def replace_token(connection: Connection, federation_id: str, *, old_until: float | None) -> TokenRow:
    """Make the next token valid; the caller has locked the federation."""
    before = token(connection, federation_id)
    row = before._replace(serial=before.serial + 1, old_until=old_until)
    if before.serial == 0:
        connection.execute(insert(federation_tokens).values(row._asdict()))
    else:
        here = _token.federation_id == federation_id
        connection.execute(update(federation_tokens).where(here).values(row._asdict()))
    return row


def forget_token(connection: Connection, federation_id: str) -> None:
    """Delete the token state of a deleted federation."""
    connection.execute(delete(federation_tokens).where(_token.federation_id == federation_id))
