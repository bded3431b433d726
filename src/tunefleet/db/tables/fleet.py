"""Tables of pipelines, decisions about workers, and notifications; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

_WAITING: Final = text("state = 'waiting'")

# Tasks that must complete before a task; `name` is their name in its workflow file.
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

# Shards of a task; `number` counts from 0.
shards = Table(
    "shards",
    metadata,
    Column("task_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("parent_seq", BigInteger, nullable=False, index=True),
    Column("parent_id", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("total", Integer, nullable=False),
)

# Decisions about a worker by admins and by elastic scaling; they survive the worker's re-registration.
worker_controls = Table(
    "worker_controls",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("cordoned_at", Double),
    Column("drains", Integer, nullable=False),
    Column("elastic_disabled_at", Double),
    sqlite_with_rowid=False,
)

# Load history of workers; `body` is JSON (`Load`).
worker_loads = Table(
    "worker_loads",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("at", Double, primary_key=True),
    Column("body", Text, nullable=False),
    Index("ix_worker_loads_at", "at"),
    sqlite_with_rowid=False,
)

# `events`: comma-separated names; `everyone`: whether it covers the tasks of all users.
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

# Subscriptions in a workflow or campaign file: to a channel of the owner, or to `target`.
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

# An outbox: written in the event's transaction, delivered after it, so that no notification is lost in a crash.
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
