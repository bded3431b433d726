"""The table of what is watched from outside: to which trace a task belongs."""

from __future__ import annotations

from sqlalchemy import Column, String, Table

from tunefleet.store.tables import metadata

task_traces = Table(
    "task_traces",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("traceparent", String, nullable=False),
    Column("parent", String),
    sqlite_with_rowid=False,
)
"""`traceparent` names the span of the whole task, in W3C's form; `parent` is the one that the submit came with."""
