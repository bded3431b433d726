"""Rows of workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from tunefleet.db import project_queries
from tunefleet.db.rows import WorkflowRow
from tunefleet.db.tables.core import workflow_documents, workflows
from tunefleet.db.tables.operations import projects

_INSERT = insert(workflows).returning(workflows.c.seq)
_INSERT_DOCUMENT = insert(workflow_documents)
_DOCUMENT = select(workflow_documents.c.document).where(workflow_documents.c.workflow_seq == bindparam("seq"))


def insert_one(connection: Connection, row: Mapping[str, Any], *, document: str, warnings: str, size_bytes: int) -> int:
    """Store a workflow with its document and return its `seq`."""
    seq: int = connection.execute(_INSERT, dict(row)).scalar_one()
    document_row = {"workflow_seq": seq, "document": document, "warnings": warnings, "size_bytes": size_bytes}
    connection.execute(_INSERT_DOCUMENT, document_row)
    count_documents(connection, row["project"], size_bytes)
    return seq


def grow(connection: Connection, seq: int, project: str, size_bytes: int) -> None:
    """Change the counted size of a workflow: the data stored in addition to its file has changed."""
    where = workflow_documents.c.workflow_seq == seq
    grown = workflow_documents.c.size_bytes + size_bytes
    connection.execute(update(workflow_documents).where(where).values(size_bytes=grown))
    count_documents(connection, project, size_bytes)


def document(connection: Connection, seq: int) -> str:
    """Return a workflow's file."""
    text: str = connection.execute(_DOCUMENT, {"seq": seq}).scalar_one()
    return text


def documents(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the files of workflows by `seq`."""
    columns = workflow_documents.c.workflow_seq, workflow_documents.c.document
    return {seq: text for seq, text in connection.execute(select(*columns).where(columns[0].in_(list(seqs))))}


def warnings(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the warnings of workflows' submissions, as JSON, by `seq`."""
    columns = workflow_documents.c.workflow_seq, workflow_documents.c.warnings
    found = connection.execute(select(*columns).where(columns[0].in_(list(seqs))))
    return {seq: text for seq, text in found}


def by_idempotency_key(connection: Connection, *, project: str, owner: str, key: str) -> WorkflowRow | None:
    """Return the workflow that an owner submitted with this key."""
    query = select(workflows).where(
        workflows.c.project == project, workflows.c.owner == owner, workflows.c.idempotency_key == key
    )
    row = connection.execute(query).first()
    return WorkflowRow(*row) if row else None


def by_ids(connection: Connection, ids: Sequence[str]) -> dict[str, WorkflowRow]:
    """Return workflows by id; unknown ids are omitted."""
    rows = (WorkflowRow(*row) for row in connection.execute(select(workflows).where(workflows.c.id.in_(list(ids)))))
    return {row.id: row for row in rows}


def by_prefix(connection: Connection, prefix: str, project: str, limit: int) -> list[WorkflowRow]:
    """Return workflows whose id has a prefix."""
    query = project_queries.with_prefix(workflows, prefix, project, limit)
    return [WorkflowRow(*row) for row in connection.execute(query)]


def page(
    connection: Connection, *, project: str, limit: int, before: int | None, filters: Mapping[str, str | None]
) -> list[WorkflowRow]:
    """Return workflows, newest first.

    Args:
        filters: Column → value; `None` does not filter.
    """
    query = select(workflows).where(workflows.c.project == project).order_by(workflows.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(workflows.c.seq < before)
    for name, value in filters.items():
        if value is not None:
            query = query.where(workflows.c[name].in_(value.split(",")))
    return [WorkflowRow(*row) for row in connection.execute(query)]


def ended_before(connection: Connection, at: float, *, project: str) -> list[WorkflowRow]:
    """Return workflows that ended before a time, oldest first."""
    query = (
        select(workflows).where(workflows.c.project == project, workflows.c.finished_at < at).order_by(workflows.c.seq)
    )
    return [WorkflowRow(*row) for row in connection.execute(query)]


def add_open(connection: Connection, workflow_id: str, count: int) -> None:
    """Count tasks that are added to a workflow after its submission."""
    where = workflows.c.id == workflow_id
    connection.execute(update(workflows).where(where).values(open_tasks=workflows.c.open_tasks + count))


def set_retried(connection: Connection, workflow_id: str, newer_id: str) -> None:
    """Store which workflow retries one."""
    connection.execute(update(workflows).where(workflows.c.id == workflow_id).values(retried_as=newer_id))


def delete_rows(connection: Connection, seqs: Sequence[int]) -> None:
    """Delete workflows and their files, and update the counts of their projects."""
    sizes = (
        select(workflows.c.project, func.sum(workflow_documents.c.size_bytes))
        .join(workflow_documents, workflow_documents.c.workflow_seq == workflows.c.seq)
        .where(workflows.c.seq.in_(list(seqs)))
        .group_by(workflows.c.project)
    )
    for project, size_bytes in connection.execute(sizes).all():
        count_documents(connection, project, -int(size_bytes))
    connection.execute(delete(workflows).where(workflows.c.seq.in_(list(seqs))))
    connection.execute(delete(workflow_documents).where(workflow_documents.c.workflow_seq.in_(list(seqs))))


def count_documents(connection: Connection, project: str, size_bytes: int) -> None:
    """Change a project's counted size of workflow files."""
    # A counter instead of a sum per submission: a project may have very many workflows.
    counted = projects.c.document_bytes + size_bytes
    connection.execute(update(projects).where(projects.c.name == project).values(document_bytes=counted))
