"""Forget final tasks and workflows with everything that they made; files are collected later."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.store import Connection, artifacts, attempts, events, journal, logs, queue, tasks, workflows


def remove_workflows(connection: Connection, ids: Sequence[str]) -> None:
    """Remove workflows and their tasks."""
    found = tasks.of_workflows(connection, ids)
    remove_tasks(connection, [row.id for rows in found.values() for row in rows])
    workflows.delete_rows(connection, ids)


def remove_tasks(connection: Connection, ids: Sequence[str]) -> None:
    """Remove tasks: attempts, journals, logs, events and artifacts."""
    artifacts.delete_rows(connection, artifacts.of_tasks(connection, ids))
    for repository in (attempts, journal, logs, queue, events):
        repository.delete_of_tasks(connection, ids)
    tasks.delete_rows(connection, ids)
