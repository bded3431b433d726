"""Tables of projects, usage, clusters, servers and the audit log; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

# Creator of the default project.
MADE_WITH_TABLES: Final = "tunefleet"
_ON_GPUS: Final = text("gpu_s > 0")

# `weight`: fair-share weight. Quotas, null for none: concurrent tasks, GPU hours per calendar month (UTC), bytes of
# stored files and workflow files. `document_bytes`: current size of the workflow files.
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

# Usage of an attempt, from its acceptance to its end; kept when the task is deleted. `share_s`: fair-share seconds;
# `energy_wh` and `cost` are null if unknown.
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

# Energy of an open attempt's GPUs so far, and their last measured power.
attempt_energy = Table(
    "attempt_energy",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("joules", Double, nullable=False),
    Column("power_w", Double, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# One row per mutating request: actor, client address, route, target and status. No bodies, no secrets.
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


_LIVE: Final = text("state <> 'ended'")

# Tasks that name a cluster engine; the others run on any registered worker.
task_engines = Table(
    "task_engines",
    metadata,
    Column("task_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", String, nullable=False),
    Column("engine", String, nullable=False),
    sqlite_with_rowid=False,
)

cluster_jobs = Table(
    "cluster_jobs",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("task_seq", BigInteger, nullable=False),
    Column("task_id", String, nullable=False),
    Column("engine", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("job_id", String),
    Column("key_id", String, nullable=False),
    Column("told", Text),
    Column("used", Integer, nullable=False, server_default="0"),
    Column("barren", Integer, nullable=False, server_default="0"),
    Column("made_at", Double, nullable=False),
    Column("running_at", Double),
    Column("leaving_at", Double),
    Column("ended_at", Double),
    Index("ix_cluster_jobs_task_seq", "task_seq"),
    Index("ix_cluster_jobs_key_id", "key_id"),
    Index("ix_cluster_jobs_live", "state", sqlite_where=_LIVE),
    sqlite_autoincrement=True,
)
"""A job of a cluster for a task: `submitting`, `waiting` for its nodes, `running`, `leaving` because the task no longer
needs it, `ended`. `told`: the cluster's reason for its state; `used`: whether one of its workers accepted the task;
`barren`: whether it ended without that although the task was waiting; `key_id`: the key of its workers, valid only for
that task."""


_UNTOLD: Final = text("told_at IS NULL")

# An outbox: one row per tracker of a cycle with a recorded model; its content is derived from the cycle's steps.
#
# `revision`: how often the cycle was recorded again after another merge; `recorded_at`: time of the last record;
# `told_at`: time of delivery; `tries` and `error`: failed deliveries and the last error; `place`: URL of the run.
#
campaign_tracking = Table(
    "campaign_tracking",
    metadata,
    Column("campaign_seq", BigInteger, primary_key=True),
    Column("cycle", Integer, primary_key=True),
    Column("tracker", String, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("recorded_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("told_at", Double),
    Column("place", Text),
    Column("error", Text),
    Index("ix_campaign_tracking_untold", "not_before", sqlite_where=_UNTOLD),
    sqlite_with_rowid=False,
)


# A single row. `epoch` grows with each leader; without a `server_id` the last leader has released the lead.
leader = Table(
    "leader",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("server_id", String),
    Column("process", String),
    Column("url", String),
    Column("renewals", BigInteger, nullable=False),
    Column("since", Double, nullable=False),
)

# Running servers; the row of a killed server is deleted by others after a timeout.
servers = Table(
    "servers",
    metadata,
    Column("id", String, primary_key=True),
    Column("process", String, nullable=False),
    Column("host", String, nullable=False),
    Column("url", String),
    Column("version", String, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("renewals", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


# `name`: object name in the store; `ref`: the store's id of the upload. An upload is not aborted while `busy_until`, a
# Unix time, is within the grace period of garbage collection: it is being continued or verified.
arriving_files = Table(
    "arriving_files",
    metadata,
    Column("name", String, primary_key=True),
    Column("attempt_id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("part_bytes", BigInteger, nullable=False),
    Column("ref", String, nullable=False),
    Column("begun_at", Double, nullable=False),
    Column("busy_until", Double, nullable=False),
    UniqueConstraint("attempt_id", "digest", name="uq_arriving_files_attempt_id"),
    Index("ix_arriving_files_busy_until", "busy_until"),
    sqlite_with_rowid=False,
)


# Single-use tokens; `worker_id` and `tags` (JSON) are fixed for the joining worker, `key_id` is its key.
invitations = Table(
    "invitations",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("token_hash", String, nullable=False, unique=True),
    Column("worker_id", String),
    Column("tags", Text),
    Column("owner", String, nullable=False),
    Column("created_by", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("used_at", Double),
    Column("key_id", String, index=True),
    sqlite_autoincrement=True,
)


# `traceparent`: the task's span in W3C format; `parent`: the span of its submission.
task_traces = Table(
    "task_traces",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("traceparent", String, nullable=False),
    Column("parent", String),
    sqlite_with_rowid=False,
)


# Totals of a task's stored journals: other records and their characters, characters of points, names of the series
# (JSON), and what has already been reported as omitted (`told`, JSON).
journal_room = Table(
    "journal_room",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("records", Integer, nullable=False),
    Column("characters", BigInteger, nullable=False),
    Column("point_characters", BigInteger, nullable=False),
    Column("told", Text, nullable=False),
    Column("series", Text, nullable=False),
    Column("summary", Text),
    sqlite_with_rowid=False,
)

# Predictions that a launch has reported: a repetition is recognized by its digest.
reported_predictions = Table(
    "reported_predictions",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch_number", Integer, primary_key=True),
    Column("digest", String, primary_key=True),
    sqlite_with_rowid=False,
)

# Names of endpoints, which outlive their tasks. `idle_task_id`: the task that the next request starts again.
endpoints = Table(
    "endpoints",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("idle_task_id", String),
    UniqueConstraint("project", "name"),
    sqlite_autoincrement=True,
)

endpoint_tasks = Table(
    "endpoint_tasks",
    metadata,
    Column("task_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("endpoint_seq", BigInteger, nullable=False, index=True),
    sqlite_with_rowid=False,
)

# `day`: UTC, as in `usage`.
endpoint_usage = Table(
    "endpoint_usage",
    metadata,
    Column("endpoint_seq", BigInteger, primary_key=True),
    Column("key_id", String, primary_key=True),
    Column("day", String, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
