"""The tables of projects, of what attempts have used, and of the audit log; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

# Who has made the project that every database has.
MADE_WITH_TABLES: Final = "tunefleet"
_ON_GPUS: Final = text("gpu_s > 0")

# `weight`: its part of a fleet that several want. Quotas, each null for none: tasks that run at once, GPU hours a
# calendar month (UTC), bytes of stored files and of workflows' documents. `document_bytes`: of the latter, all that are
# stored now.
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

# What an attempt has used, from its accept to its end; it stays when the task is removed. `share_s`: what counts for
# the fair share; `energy_wh` and `cost` are null where nobody told any.
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

# What the GPUs of an open attempt have used so far, and what they drew at the last look.
attempt_energy = Table(
    "attempt_energy",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("joules", Double, nullable=False),
    Column("power_w", Double, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# One row a request that could change something: who, whence, what, and how it was answered. No bodies, no secrets.
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

# Tasks that name an engine; the others get what workers are there.
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
"""What was asked of a cluster for a task: `submitting`, `waiting` for its nodes, `running`, `leaving` since the task
needs it no more, `ended`. `told`: why it stands there, in the cluster's words; `used`: whether a worker of it took the
task; `barren`: whether it ended without that, though the task waited; `key_id`: the key of its workers, good for that
task alone."""


_UNTOLD: Final = text("told_at IS NULL")

# One row for each tracker of a cycle whose model was recorded: what it is told is derived from the cycle's steps.
#
# `revision`: how often the cycle was recorded anew, after its model was merged again; `recorded_at`: when it was last.
# It is told at `told_at`, after `tries` failures of which `error` was the last one, and lies at `place`.
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


# One row: who leads. `epoch` grows with each leader; without a `server_id` the last one has given it back.
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

# The servers that are there; one that was killed stays until others have missed it for long.
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


# `name` is that of the place in the store, `ref` what the store calls the upload. Nobody gives a file up as long as
# `busy_until`, a Unix time, is younger than the grace of garbage: somebody goes on with it, or it is being read.
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


# Tokens with which a machine joins, once; `worker_id` and `tags` (JSON) bind whoever joins, `key_id` is its key.
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


# `traceparent` names the span of the whole task, in W3C's form; `parent` is the one that the submit came with.
task_traces = Table(
    "task_traces",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("traceparent", String, nullable=False),
    Column("parent", String),
    sqlite_with_rowid=False,
)


# What of a task's journals is kept: records beside points and their characters, the characters of points, the names of
# their series (JSON), and of what it was said already that more is left out (JSON).
journal_room = Table(
    "journal_room",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("records", Integer, nullable=False),
    Column("characters", BigInteger, nullable=False),
    Column("point_characters", BigInteger, nullable=False),
    Column("told", Text, nullable=False),
    Column("series", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Which predictions a launch has reported: a repetition is found by the digest of what makes it one.
reported_predictions = Table(
    "reported_predictions",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch_number", Integer, primary_key=True),
    Column("digest", String, primary_key=True),
    sqlite_with_rowid=False,
)
