"""Queries that tables with the columns `seq`, `id`, `project`, `owner` and `status` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, Table, select


def with_prefix(table: Table, prefix: str, project: str, limit: int) -> Select[Any]:
    """Return the query for the rows of a project whose id has a prefix, by id."""
    at = table.c
    # A range instead of LIKE: it uses the index with any collation.
    query = select(table).where(at.project == project, at.id >= prefix, at.id < prefix + "\uffff")
    return query.order_by(at.id).limit(limit)


def newest_first(
    table: Table,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    owner: str | None = None,
    statuses: Sequence[str] | None = None,
) -> Select[Any]:
    """Return the query for a page of the rows of a project, newest first.

    Args:
        before: `seq` of the last row of the previous page.
        statuses: Statuses to include; all if empty.
    """
    at = table.c
    query = select(table).where(at.project == project).order_by(at.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(at.seq < before)
    if owner is not None:
        query = query.where(at.owner == owner)
    return query.where(at.status.in_(list(statuses))) if statuses else query
