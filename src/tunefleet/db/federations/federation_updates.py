"""Updates of workers: their round and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.federation import federation_updates

# Arrived while no round accepted it; counts in the worker's next round.
WAITING: Final = "waiting"
COUNTED: Final = "counted"
SUPERSEDED: Final = "superseded"
AGGREGATED: Final = "aggregated"
REJECTED: Final = "rejected"
DISCARDED: Final = "discarded"
_at = federation_updates.c
# Same text as in the partial indexes, so that they are used.
_IS_COUNTED: Final = text("state = 'counted'")
_IS_WAITING: Final = text("state = 'waiting'")
_INSERT = insert(federation_updates).returning(_at.seq)


class UpdateRow(NamedTuple):
    """An update; `config` and `tokenizer` (path → digest) are JSON. It has a `seq` once it is stored.

    An update that was rejected before its files were read has neither digests nor config.
    """

    federation_seq: int
    worker: str
    round: int | None
    state: str
    reason: str | None
    step: int
    num_examples: int
    base_version: int | None
    upload_digest: str | None
    model_digest: str | None
    values_digest: str | None
    config: str | None
    tokenizer: str
    upload_dtype: str
    size_bytes: int
    norm: float | None
    loss_before: float | None
    loss_after: float | None
    weight: float | None
    created_at: float
    settled_at: float | None
    seq: int = 0
    attempt: int | None = None
    rows_before: int | None = None
    rows_after: int | None = None

    @property
    def holder(self) -> str:
        """Holder under which its files are pinned."""
        return f"update-{self.seq}"


_ROWS = select(*(_at[name] for name in UpdateRow._fields))
# Built once: an upload runs all of these, and building a statement takes longer than executing it.
_MINE = _ROWS.where(_at.federation_seq == bindparam("federation"), _at.worker == bindparam("by"))
_SAME = (
    _MINE.where(_at.step == bindparam("at_step"), _at.upload_digest == bindparam("digest")).order_by(_at.seq).limit(1)
)
_COUNTED_OF_WORKER = _MINE.where(_at.round == bindparam("number"), _IS_COUNTED)
_WAITING_OF_WORKER = _MINE.where(_IS_WAITING)
_WAITING = _ROWS.where(_at.federation_seq == bindparam("federation"), _IS_WAITING).order_by(_at.seq)
_COUNTED = select(_at.worker).where(
    _at.federation_seq == bindparam("federation"), _at.round == bindparam("number"), _IS_COUNTED
)
_ROWS_TAKEN = select(func.coalesce(func.max(_at.rows_after), 0)).where(
    _at.federation_seq == bindparam("federation"),
    _at.worker == bindparam("by"),
    _at.state.in_((WAITING, COUNTED, AGGREGATED)),
    _at.attempt.is_not(None),
    _at.seq != bindparam("apart"),
)
_SETTLE = Bulk(
    update(federation_updates)
    .where(_at.seq == bindparam("b_seq"))
    .values({name: bindparam(f"b_{name}") for name in ("state", "weight", "reason", "settled_at")}),
    ["b_seq", "b_state", "b_weight", "b_reason", "b_settled_at"],
)


def insert_one(connection: Connection, row: UpdateRow) -> UpdateRow:
    """Store an update, and return it with its `seq`."""
    values = row._asdict()
    del values["seq"]
    return row._replace(seq=connection.execute(_INSERT, values).scalar_one())


def of_round(
    connection: Connection, federation_seq: int, number: int, states: Sequence[str] | None = None
) -> list[UpdateRow]:
    """Return the updates of a round in order of arrival."""
    query = _ROWS.where(_at.federation_seq == federation_seq, _at.round == number).order_by(_at.seq)
    if states is not None:
        query = query.where(_at.state.in_(list(states)))
    return [UpdateRow(*row) for row in connection.execute(query)]


def workers_of_rounds(connection: Connection, federation_seq: int, numbers: Sequence[int]) -> dict[int, list[str]]:
    """Return the workers whose updates count or counted in rounds, by round."""
    query = (
        select(_at.round, _at.worker)
        .where(_at.federation_seq == federation_seq, _at.round.in_(list(numbers)))
        .where(_at.state.in_((COUNTED, AGGREGATED)))
        .order_by(_at.round, _at.seq)
    )
    found: dict[int, list[str]] = {}
    for number, worker in connection.execute(query):
        found.setdefault(number, []).append(worker)
    return found


def waiting(connection: Connection, federation_seq: int) -> list[UpdateRow]:
    """Return the updates that wait for a round, in order of arrival."""
    return [UpdateRow(*row) for row in connection.execute(_WAITING, {"federation": federation_seq})]


def same(connection: Connection, federation_seq: int, worker: str, step: int, digest: str) -> UpdateRow | None:
    """Return an earlier update with the same content, if there is one."""
    given = {"federation": federation_seq, "by": worker, "at_step": step, "digest": digest}
    row = connection.execute(_SAME, given).first()
    return UpdateRow(*row) if row else None


def current(connection: Connection, federation_seq: int, worker: str, number: int | None) -> UpdateRow | None:
    """Return a worker's update that counts in a round, or that waits for one if `number` is `None`."""
    given = {"federation": federation_seq, "by": worker}
    if number is None:
        row = connection.execute(_WAITING_OF_WORKER, given).first()
    else:
        row = connection.execute(_COUNTED_OF_WORKER, {**given, "number": number}).first()
    return UpdateRow(*row) if row else None


def rows_taken(connection: Connection, federation_seq: int, worker: str, *, apart: int | None = None) -> int:
    """Return the last training row that a worker's updates cover; 0 if the worker numbers no attempts."""
    given = {"federation": federation_seq, "by": worker, "apart": -1 if apart is None else apart}
    return int(connection.execute(_ROWS_TAKEN, given).scalar_one())


def replaced_by(connection: Connection, row: UpdateRow) -> int | None:
    """Return the update that this one replaced, if there is one."""
    query = (
        select(_at.seq)
        .where(_at.federation_seq == row.federation_seq, _at.worker == row.worker, _at.seq < row.seq)
        .where(_at.state == SUPERSEDED, _at.reason == replacement(row.seq))
        .order_by(_at.seq.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()


def replaced_in_its_round(connection: Connection, row: UpdateRow) -> bool:
    """Return whether an update replaced one that counted in the same round and had not waited for it."""
    mine = (_at.federation_seq == row.federation_seq, _at.worker == row.worker, _at.round == row.round)
    query = select(_at.seq).where(*mine, _at.state == SUPERSEDED, _at.reason == replacement(row.seq))
    return connection.execute(query).first() is not None


def replacement(seq: int) -> str:
    """Return the reason stored with a replaced update."""
    return f"Replaced by update {seq}."


def counted_workers(connection: Connection, federation_seq: int, number: int) -> set[str]:
    """Return the workers whose updates count in an open round."""
    return set(connection.execute(_COUNTED, {"federation": federation_seq, "number": number}).scalars())


def settle(
    connection: Connection, outcomes: Sequence[tuple[int, float, str | None]], *, state: str, now: float
) -> None:
    """Store the outcome of a round's updates: `seq`, weight, and the reason of an exclusion."""
    _SETTLE.run(connection, [(seq, state, weight, reason, now) for seq, weight, reason in outcomes])


def delete_rejected(connection: Connection, federation_seq: int, number: int, worker: str) -> None:
    """Delete a worker's updates that were rejected in a round before their files were stored."""
    here = (_at.federation_seq == federation_seq, _at.round == number, _at.worker == worker, _at.state == REJECTED)
    connection.execute(delete(federation_updates).where(*here, _at.upload_digest.is_(None)))


def change(connection: Connection, seqs: Sequence[int], values: Mapping[str, Any]) -> None:
    """Change columns of updates."""
    # In batches: SQLite limits the number of parameters of a statement.
    for start in range(0, len(seqs), 500):
        part = list(seqs[start : start + 500])
        connection.execute(update(federation_updates).where(_at.seq.in_(part)).values(dict(values)))


def page(
    connection: Connection,
    federation_seq: int,
    *,
    limit: int,
    before: int | None = None,
    filters: Mapping[str, Sequence[Any] | None],
) -> list[UpdateRow]:
    """Return updates of a federation, newest first.

    Args:
        filters: Column → allowed values; `None` for any.
    """
    query = _ROWS.where(_at.federation_seq == federation_seq).order_by(_at.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.seq < before)
    for name, values in filters.items():
        if values is not None:
            query = query.where(_at[name].in_(list(values)))
    return [UpdateRow(*row) for row in connection.execute(query)]


def refused_last(connection: Connection, federation_seq: int) -> dict[str, str]:
    """Return the workers whose newest update does not count, with the reason."""
    newest = select(func.max(_at.seq)).where(_at.federation_seq == federation_seq).group_by(_at.worker)
    query = select(_at.worker, _at.reason).where(_at.seq.in_(newest), _at.state.in_([DISCARDED, REJECTED]))
    return {worker: reason for worker, reason in connection.execute(query) if reason}


def senders(federation_id: str, worker: str | None) -> list[str]:
    """Return the holders of files uploaded for an update: the worker's own token, and any other token.

    Args:
        worker: Owner of a worker token; `None` for any other token.
    """
    return [federation_id] if worker is None else [f"{federation_id}-from-{worker}", federation_id]


def holders_of(connection: Connection, federation_seq: int) -> list[str]:
    """Return the holders under which files of a federation's updates are pinned."""
    return [
        f"update-{seq}"
        for seq in connection.execute(select(_at.seq).where(_at.federation_seq == federation_seq)).scalars()
    ]


def count(connection: Connection, federation_seq: int) -> int:
    """Return the number of accepted updates of a federation."""
    query = select(func.count()).select_from(federation_updates)
    return connection.execute(query.where(_at.federation_seq == federation_seq, _at.state != REJECTED)).scalar_one()
