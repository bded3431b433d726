"""Tables, migrations and repositories: the only package that contains SQL.

A repository is a module of functions on a connection; it handles rows and makes no decisions.
`repositories.task_transitions` is the only module that changes a task's status. Callers run repository functions in
`Database.write` and `Database.read`.
"""

from __future__ import annotations

from sqlalchemy import Connection

from tunefleet.db.engine.database import Database
from tunefleet.db.engine.writer import after_commit, undone_if_failed, wake
from tunefleet.db.tables.core import DEFAULT_PROJECT

__all__ = ["DEFAULT_PROJECT", "Connection", "Database", "after_commit", "undone_if_failed", "wake"]
