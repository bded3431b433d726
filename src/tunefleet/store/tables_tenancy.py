"""The tables of projects, of what attempts have used, and of the audit log; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, text

from tunefleet.store.tables import SERIAL, metadata

MADE_WITH_TABLES: Final = "tunefleet"
"""Who has made the project that every database has."""
_ON_GPUS: Final = text("gpu_s > 0")

projects = Table(
    "projects",
    metadata,
    Column("name", String, primary_key=True),
    Column("description", Text),
    Column("weight", Double, nullable=False),
    Column("max_running", Integer),
    Column("gpu_hours", Double),
    Column("storage_bytes", BigInteger),
    Column("created_by", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("archived_at", Double),
    Column("document_bytes", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)
"""`weight`: its part of a fleet that several want. Quotas, each null for none: tasks that run at once, GPU hours a
calendar month (UTC), bytes of stored files and of workflows' documents. `document_bytes`: of the latter, all that are
stored now."""

usage = Table(
    "usage",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("attempt_id", String, nullable=False),
    Column("task_id", String, nullable=False),
    Column("project", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("worker_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("gpu_model", String),
    Column("gpus", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("day", String, nullable=False),
    Column("wall_s", Double, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    Column("share_s", Double, nullable=False),
    Column("energy_wh", Double),
    Column("cost", Double),
    Index("ix_usage_ended_at", "ended_at"),
    Index("ix_usage_gpu", "project", "ended_at", sqlite_where=_ON_GPUS),
    sqlite_autoincrement=True,
)
"""What an attempt has used, from its accept to its end; it stays when the task is removed. `share_s`: what counts for
the fair share; `energy_wh` and `cost` are null where nobody told any."""

attempt_energy = Table(
    "attempt_energy",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("joules", Double, nullable=False),
    Column("power_w", Double, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""What the GPUs of an open attempt have used so far, and what they drew at the last look."""

audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("key_id", String),
    Column("actor", String),
    Column("role", String),
    Column("project", String),
    Column("address", String, nullable=False),
    Column("method", String, nullable=False),
    Column("route", String, nullable=False),
    Column("target", Text),
    Column("status", Integer, nullable=False),
    Column("request_id", String, nullable=False),
    Index("ix_audit_log_at", "at"),
    sqlite_autoincrement=True,
)
"""One row a request that could change something: who, whence, what, and how it was answered. No bodies, no secrets."""
