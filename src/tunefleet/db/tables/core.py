"""The core tables, in SQL that SQLite and PostgreSQL both support.

Times are Unix seconds (UTC); columns named after JSON contain JSON. Rows that change often are narrow: large and rarely
read data (workflow file, spec, result) is in separate tables. Rows that are written for every task have ascending
numeric keys: tasks that change together share pages, and a commit writes a tenth of what random ids would cost. An
index with a `sqlite_where` is partial in PostgreSQL, too; `migrate` applies it there.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Every row belongs to a project; this one always exists.
DEFAULT_PROJECT: Final = "default"

SERIAL: Final = BigInteger().with_variant(Integer, "sqlite")
_QUEUED: Final = text("status = 'queued'")
_DELAYED: Final = text("status = 'queued' AND ready_at > 0")
_EXPIRING: Final = text("status = 'queued' AND queue_deadline IS NOT NULL")
_SET_ASIDE: Final = text("status IN ('pending', 'paused')")
_OPEN: Final = text("state IN ('offered', 'accepted')")
_GANG: Final = text("gang_of IS NOT NULL")
_MERGING: Final = text("status = 'queued' AND merge_key IS NOT NULL")
_UNDER_WAY: Final = text("state IN ('pending', 'acknowledged', 'applied')")
_FEDERATED: Final = text("federation_seq IS NOT NULL")
_OF_A_CAMPAIGN: Final = text("campaign_seq IS NOT NULL")

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", Text, nullable=False))

# `endpoint`: the only endpoint that a key with the role `endpoint` may call; null for all of its project.
api_keys = Table(
    "api_keys",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("secret_hash", String, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Column("endpoint", String),
    sqlite_autoincrement=True,
)

# Single-use `login` codes and `browser` sessions; both belong to a key.
sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("key_id", String, nullable=False, index=True),
    Column("expires_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# `open_tasks`, `failed_tasks` and `cancelled_tasks` are counters, so that the end of a task needs no scan.
workflows = Table(
    "workflows",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("status", String, nullable=False),
    Column("open_tasks", Integer, nullable=False),
    Column("failed_tasks", Integer, nullable=False),
    Column("cancelled_tasks", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("idempotency_key", String),
    Column("request_hash", String),
    Column("retried_as", String),
    UniqueConstraint("project", "owner", "idempotency_key"),
    sqlite_autoincrement=True,
)

# `size_bytes`: size of the workflow file, and of its copies in the specs of its tasks.
workflow_documents = Table(
    "workflow_documents",
    metadata,
    Column("workflow_seq", SERIAL, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    Column("warnings", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)

# `rank` orders a queue: the queueing time, shifted by the priority, so that ageing needs no updates.
#
# Queued tasks with the same `merge_key` may run as one; the key includes their owner.
#
# `title` replaces `name` for people; `model`, `dataset` and `method` are read from the spec for lists.
#
tasks = Table(
    "tasks",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("workflow_id", String, nullable=False),
    Column("workflow_seq", BigInteger, nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("slot_class", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("parent_task_id", String),
    Column("priority", Integer, nullable=False),
    Column("rank", Double, nullable=False),
    Column("requirement_key", String, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("backoff_s", Double, nullable=False),
    Column("retry_on", String),
    Column("on_lost", String, nullable=False),
    Column("max_runtime_s", Double),
    Column("queue_deadline", Double),
    Column("created_at", Double, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", String),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("attempt_id", String),
    Column("worker_id", String),
    Column("desired", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("reached", Integer, nullable=False),
    Column("queued_at", Double),
    Column("ready_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("version", Integer, nullable=False),
    Column("stalled_since", Double),
    Column("merge_key", String),
    Column("title", String),
    Column("model", String),
    Column("dataset", String),
    Column("method", String),
    Index("ix_tasks_queue", "requirement_key", "project", "rank", sqlite_where=_QUEUED),
    Index("ix_tasks_delayed", "ready_at", sqlite_where=_DELAYED),
    Index("ix_tasks_expiring", "queue_deadline", sqlite_where=_EXPIRING),
    Index("ix_tasks_set_aside", "status", "kind", sqlite_where=_SET_ASIDE),
    Index("ix_tasks_merging", "merge_key", "rank", sqlite_where=_MERGING),
    sqlite_autoincrement=True,
)

# `spec` is the user's text; `resolved` has its references replaced, once the referenced tasks have ended.
task_documents = Table(
    "task_documents",
    metadata,
    Column("task_seq", SERIAL, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("result", Text),
    Column("detail", Text),
    Column("resolved", Text),
    Column("notes", Text),
)

task_tags = Table(
    "task_tags",
    metadata,
    Column("task_seq", BigInteger, primary_key=True),
    Column("tag", String, primary_key=True),
    Index("ix_task_tags_tag", "tag"),
    sqlite_with_rowid=False,
)

# Artifacts that a task reads: they cannot be deleted before the task is final.
task_inputs = Table(
    "task_inputs",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("artifact_id", String, primary_key=True),
    Index("ix_task_inputs_artifact_id", "artifact_id"),
    sqlite_with_rowid=False,
)

# Tasks with equal requirements share a row, so that placement matches each requirement once.
requirements = Table(
    "requirements",
    metadata,
    Column("key", String, primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String, primary_key=True),
    Column("task_id", String, nullable=False),
    Column("task_seq", BigInteger, nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("worker_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("slot_class", String, nullable=False),
    Column("requirement_key", String, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", String),
    Column("error", Text),
    Column("offered_at", Double, nullable=False),
    Column("accepted_at", Double),
    Column("finished_at", Double),
    Column("merged_into", String),
    Column("gpus", Text),
    Column("gang_of", String),
    Column("node_rank", Integer),
    Column("gang_point", String),
    Column("gang_failed_at", Double),
    Index("ix_attempts_open", "worker_id", sqlite_where=_OPEN),
    Index("ix_attempts_gang", "gang_of", sqlite_where=_GANG),
    sqlite_with_rowid=False,
)
"""`merged_into`: the attempt whose run includes this one; it takes no slot of its own.

`gpus`: comma-separated UUIDs of the assigned devices; null if the worker chooses them itself.

`gang_of`: for a training run on several workers, the attempt of the first node; the first node refers to itself. Only
the first node counts as an attempt of the task, the others share its number. `node_rank` counts from 0, `gang_point` is
the rendezvous endpoint (host:port), `gang_failed_at` the time at which a node reported that it lost the others.
"""

# Commands to a running attempt, or without a task to a worker.
commands = Table(
    "commands",
    metadata,
    Column("id", String, primary_key=True),
    Column("task_id", String, index=True),
    Column("attempt_id", String),
    Column("worker_id", String, nullable=False),
    Column("command", String, nullable=False),
    Column("data", Text, nullable=False),
    Column("state", String, nullable=False),
    Column("step", BigInteger),
    Column("checkpoint", String),
    Column("message", Text),
    Column("owner", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("result", Text),
    Index("ix_commands_open", "worker_id", sqlite_where=_UNDER_WAY),
    sqlite_with_rowid=False,
)

# Where the next attempt of a task starts, if not at the newest available checkpoint.
#
# `from_task_id`: the task whose folder on `worker_id` has the checkpoint; `bound`: no other worker has it.
#
resumes = Table(
    "resumes",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("step", BigInteger),
    Column("from_task_id", String),
    Column("worker_id", String),
    Column("bound", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# Workers that let an offer of a task expire: the task is not offered there again before `until`.
void_offers = Table(
    "void_offers",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("worker_id", String, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("until", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Failed offers in a row, per worker and kind of task; after enough `strikes` none is made before `until`.
cordons = Table(
    "cordons",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("strikes", Integer, nullable=False),
    Column("until", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Deleted tasks whose job folder a worker still has.
discards = Table(
    "discards",
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("task_id", String, primary_key=True),
    sqlite_with_rowid=False,
)

# `state_id`: the worker's state folder; `session`: its current process; `capabilities`: JSON.
workers = Table(
    "workers",
    metadata,
    Column("id", String, primary_key=True),
    Column("project", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("state_id", String, nullable=False),
    Column("session", String, nullable=False),
    Column("status", String, nullable=False),
    Column("capabilities", Text, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("last_seen_at", Double),
    sqlite_with_rowid=False,
)

# Ids ascend in commit order, because writes are serialized: a reader that continues after an id misses nothing.
events = Table(
    "events",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("project", String, nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("task_id", String),
    Column("workflow_id", String),
    Column("workflow_seq", BigInteger, index=True),
    Column("worker_id", String),
    Column("data", Text, nullable=False),
    Column("federation_seq", BigInteger),
    Column("campaign_seq", BigInteger),
    Index("ix_events_federation_seq", "federation_seq", sqlite_where=_FEDERATED),
    Index("ix_events_campaign_seq", "campaign_seq", sqlite_where=_OF_A_CAMPAIGN),
    sqlite_autoincrement=True,
)

# `hidden_after`: a later launch continued from this step; later points are superseded, all of them if it is -1.
launches = Table(
    "launches",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch", String, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("from_step", Integer),
    Column("checkpoint", String),
    Column("hidden_after", Integer),
    Column("cursor", BigInteger, nullable=False),
    Column("progress", Text),
    Column("started_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# `curve`: identifies points with the same value names in the same series; see `journal.curve_of`.
metric_points = Table(
    "metric_points",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch_number", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("series", String, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", Double),
    Column("at", Double, nullable=False),
    Column("window_from", BigInteger),
    Column("window_to", BigInteger),
    Column("curve", BigInteger, nullable=False),
    Column("values_json", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Records that are not metrics: checkpoints, predictions, events, and unreadable lines.
journal_records = Table(
    "journal_records",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch_number", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("type", String, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# `base`: offset of the attempt's bytes in the task's log; `received`: their number.
log_streams = Table(
    "log_streams",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("task_id", String, nullable=False, index=True),
    Column("base", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Keyed by the end offset, so that a read from an offset is a range scan.
log_chunks = Table(
    "log_chunks",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("end", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# One row per project: a project must not learn from the server that another one has a file.
blobs = Table(
    "blobs",
    metadata,
    Column("project", String, primary_key=True),
    Column("digest", String, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("verified_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Holders that know that a file is stored and have not published it yet: it must not be collected meanwhile.
blob_pins = Table(
    "blob_pins",
    metadata,
    Column("digest", String, primary_key=True),
    Column("holder", String, primary_key=True),
    Column("until", Double, nullable=False),
    Index("ix_blob_pins_holder", "holder"),
    sqlite_with_rowid=False,
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("file_count", Integer, nullable=False),
    Column("task_id", String),
    Column("attempt_id", String),
    Column("owner", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("metadata", Text, nullable=False),
    Index("ix_artifacts_digest", "digest"),
    Index("ix_artifacts_name", "name"),
    Index("ix_artifacts_task_id", "task_id"),
    sqlite_autoincrement=True,
)

artifact_files = Table(
    "artifact_files",
    metadata,
    Column("artifact_id", String, primary_key=True),
    Column("path", String, primary_key=True),
    Column("digest", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index("ix_artifact_files_digest", "digest"),
    sqlite_with_rowid=False,
)

# Registrations of the training-agent protocol, and parameters that were changed since.
training_jobs = Table(
    "training_jobs",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("body", Text, nullable=False),
    Column("resumed_from", String),
    Column("checkpoint", String),
    Column("updates", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Number of log lines that an attempt has reported; a repetition is recognized by the number of its first line.
reported_lines = Table(
    "reported_lines",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("task_id", String, nullable=False, index=True),
    Column("lines", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
