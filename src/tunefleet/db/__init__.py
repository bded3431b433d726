"""Tables, migrations and repositories: the only package that speaks SQL.

A repository is a module of functions on a connection; it knows rows, not users, and decides nothing.
`repositories.task_transitions` is the one place that changes a task's status. Callers run them in `Database.write` and
`Database.read`.
"""

from __future__ import annotations

from sqlalchemy import Connection

from tunefleet.db.engine.database import Database
from tunefleet.db.engine.writer import after_commit, undone_if_failed, wake
from tunefleet.db.tables.core import DEFAULT_PROJECT

__all__ = ["DEFAULT_PROJECT", "Connection", "Database", "after_commit", "undone_if_failed", "wake"]
