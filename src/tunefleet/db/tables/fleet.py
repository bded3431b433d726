"""The tables of pipelines, of what was decided about workers, and of notifications; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

_WAITING: Final = text("state = 'waiting'")

# Which tasks must be completed before a task; `name` is what its document calls them.
task_edges = Table(
    "task_edges",
    metadata,
    Column("task_seq", BigInteger, primary_key=True),
    Column("upstream_seq", BigInteger, primary_key=True),
    Column("upstream_id", String, nullable=False),
    Column("name", String, nullable=False),
    Index("ix_task_edges_upstream_seq", "upstream_seq"),
    sqlite_with_rowid=False,
)

# Parts of a task that was spread over workers; `number` counts from 0.
shards = Table(
    "shards",
    metadata,
    Column("task_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("parent_seq", BigInteger, nullable=False, index=True),
    Column("parent_id", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("total", Integer, nullable=False),
)

# What people, and the elastic scaling, have decided about a worker; it survives the worker's registrations.
worker_controls = Table(
    "worker_controls",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("cordoned_at", Double),
    Column("drains", Integer, nullable=False),
    Column("elastic_disabled_at", Double),
    sqlite_with_rowid=False,
)

# How busy a worker was; `body` is JSON (`wire.link.Load`).
worker_loads = Table(
    "worker_loads",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("at", Double, primary_key=True),
    Column("body", Text, nullable=False),
    Index("ix_worker_loads_at", "at"),
    sqlite_with_rowid=False,
)

# Where a user wants to hear of what; `events` are names separated by commas, `everyone`: of all users' tasks.
notification_channels = Table(
    "notification_channels",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("format", String, nullable=False),
    Column("target", Text, nullable=False),
    Column("secret", String),
    Column("events", String, nullable=False),
    Column("everyone", Integer, nullable=False),
    Column("enabled", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    UniqueConstraint("project", "owner", "name"),
    sqlite_autoincrement=True,
)

# What a document wants to be told to whom, of its task or its campaign: to a channel of the owner, or to `target`.
task_notices = Table(
    "task_notices",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("channel_id", String),
    Column("format", String, nullable=False),
    Column("target", Text, nullable=False),
    Column("events", String, nullable=False),
    sqlite_with_rowid=False,
)

# What is to be said to whom: written with the event's own transaction, delivered after it.
notifications = Table(
    "notifications",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("channel_id", String),
    Column("format", String, nullable=False),
    Column("target", Text, nullable=False),
    Column("event", String, nullable=False),
    Column("event_id", BigInteger, nullable=False),
    Column("task_id", String, index=True),
    Column("body", Text, nullable=False),
    Column("state", String, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("sent_at", Double),
    Index("ix_notifications_due", "next_at", sqlite_where=_WAITING),
    sqlite_autoincrement=True,
)
