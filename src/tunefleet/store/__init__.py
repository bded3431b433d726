"""Tables, migrations and repositories: the only room that speaks SQL.

A repository is a module of functions on a connection; it knows rows, not users, and decides nothing. `task_moves` is
the one place that changes a task's status. Callers run them in `Database.write` and `Database.read`.
"""

from __future__ import annotations

from sqlalchemy import Connection

from tunefleet.store import (  # noqa: F401 - part of the schema
    tables_arriving,
    tables_campaign,
    tables_clusters,
    tables_federation,
    tables_fleet,
    tables_joining,
    tables_journal,
    tables_observing,
    tables_servers,
    tables_tenancy,
    tables_tracking,
)
from tunefleet.store.database import Database
from tunefleet.store.tables import DEFAULT_PROJECT
from tunefleet.store.writer import after_commit, undone_if_failed, wake

__all__ = ["DEFAULT_PROJECT", "Connection", "Database", "after_commit", "undone_if_failed", "wake"]
