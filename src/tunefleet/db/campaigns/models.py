"""The model registry: versions, of which at most one per name is promoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from tunefleet.db.tables.campaigns import model_versions

_at = model_versions.c
_PROMOTED = "promoted"


class ModelRow(NamedTuple):
    """A version of a model; `location`, `lineage` and `evaluation` are JSON. It has a `seq` once it is stored."""

    project: str
    owner: str
    name: str
    version: int
    stage: str
    form: str
    campaign_id: str
    cycle: int
    key: str
    task_id: str | None
    location: str
    lineage: str
    evaluation: str
    reason: str | None
    created_at: float
    promoted_at: float | None
    seq: int = 0


_ROWS = select(*(_at[name] for name in ModelRow._fields))


def insert_one(connection: Connection, row: ModelRow) -> ModelRow:
    """Store a version; its number is unique in the model, and each try of a cycle has one version."""
    values = row._asdict()
    del values["seq"]
    seq = connection.execute(insert(model_versions).returning(_at.seq), values).scalar_one()
    return row._replace(seq=seq)


def change(connection: Connection, row: ModelRow, values: Mapping[str, Any]) -> ModelRow:
    """Change columns of a version, and return the changed row."""
    connection.execute(update(model_versions).where(_at.seq == row.seq).values(dict(values)))
    return row._replace(**values)


def by_key(connection: Connection, key: str) -> ModelRow | None:
    """Return the version of a cycle's try."""
    row = connection.execute(_ROWS.where(_at.key == key)).first()
    return ModelRow(*row) if row else None


def get(connection: Connection, project: str, owner: str, name: str, version: int) -> ModelRow | None:
    """Return a version."""
    row = connection.execute(_ROWS.where(_of(project, owner, name), _at.version == version)).first()
    return ModelRow(*row) if row else None


def promoted(connection: Connection, project: str, owner: str, name: str) -> ModelRow | None:
    """Return the promoted version of a model."""
    row = connection.execute(_ROWS.where(_of(project, owner, name), _at.stage == _PROMOTED)).first()
    return ModelRow(*row) if row else None


def promoted_before(connection: Connection, row: ModelRow) -> ModelRow | None:
    """Return the newest earlier version that was ever promoted: the target of a rollback."""
    query = _ROWS.where(_of(row.project, row.owner, row.name), _at.promoted_at.is_not(None))
    query = query.where(_at.version < row.version).order_by(_at.version.desc()).limit(1)
    found = connection.execute(query).first()
    return ModelRow(*found) if found else None


def newest(connection: Connection, project: str, owner: str, name: str) -> int:
    """Return the highest version number of a model; 0 if it has none."""
    query = select(func.max(_at.version)).where(_of(project, owner, name))
    return connection.execute(query).scalar() or 0


def owners(connection: Connection, project: str, name: str) -> list[str]:
    """Return the owners of models with a name."""
    query = select(_at.owner).where(_at.project == project, _at.name == name).distinct().order_by(_at.owner)
    return list(connection.execute(query).scalars())


def of_name(connection: Connection, project: str, owner: str, name: str) -> list[ModelRow]:
    """Return all versions of a model, oldest first."""
    query = _ROWS.where(_of(project, owner, name)).order_by(_at.version)
    return [ModelRow(*row) for row in connection.execute(query)]


def of_campaign(connection: Connection, campaign_id: str, cycles: Sequence[int]) -> list[ModelRow]:
    """Return the versions of a campaign's cycles, oldest first."""
    query = _ROWS.where(_at.campaign_id == campaign_id, _at.cycle.in_(list(cycles))).order_by(_at.seq)
    return [ModelRow(*row) for row in connection.execute(query)]


def in_use(connection: Connection, task_ids: Sequence[str]) -> dict[str, ModelRow]:
    """Return which of these tasks produced a model that is or was promoted, and may be again."""
    found: dict[str, ModelRow] = {}
    # In batches: SQLite limits the number of parameters of a statement.
    for start in range(0, len(task_ids), 500):
        part = list(task_ids[start : start + 500])
        query = _ROWS.where(_at.task_id.in_(part), _at.promoted_at.is_not(None))
        found |= {row.task_id: ModelRow(*row) for row in connection.execute(query)}
    return found


def all_in_use(connection: Connection) -> list[str]:
    """Return all tasks that produced a model that is or was promoted."""
    query = select(_at.task_id).where(_at.task_id.is_not(None), _at.promoted_at.is_not(None)).distinct()
    return [task_id for (task_id,) in connection.execute(query) if task_id is not None]


def page(
    connection: Connection,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    owner: str | None = None,
    name: str | None = None,
    stages: Sequence[str] | None = None,
) -> list[ModelRow]:
    """Return versions, newest first."""
    query = _ROWS.where(_at.project == project).order_by(_at.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.seq < before)
    if owner is not None:
        query = query.where(_at.owner == owner)
    if name is not None:
        query = query.where(_at.name == name)
    if stages:
        query = query.where(_at.stage.in_(list(stages)))
    return [ModelRow(*row) for row in connection.execute(query)]


def _of(project: str, owner: str, name: str) -> ColumnElement[bool]:
    return (_at.project == project) & (_at.owner == owner) & (_at.name == name)
