"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_api_keys"),
        sa.UniqueConstraint("id", name="uq_api_keys_id"),
        sa.UniqueConstraint("secret_hash", name="uq_api_keys_secret_hash"),
        sqlite_autoincrement=True,
    )


def _artifact_files() -> None:
    op.create_table(
        "artifact_files",
        sa.Column("artifact_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", "path", name="pk_artifact_files"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_artifact_files_digest", "artifact_files", ["digest"], unique=False)


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_count", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_artifacts"),
        sa.UniqueConstraint("id", name="uq_artifacts_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"], unique=False)
    op.create_index("ix_artifacts_name", "artifacts", ["name"], unique=False)
    op.create_index("ix_artifacts_task_id", "artifacts", ["task_id"], unique=False)


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("slot_class", sa.String(), nullable=False),
        sa.Column("requirement_key", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("offered_at", sa.Double(), nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_attempts_open",
        "attempts",
        ["worker_id"],
        unique=False,
        sqlite_where=sa.text("state IN ('offered', 'accepted')"),
        postgresql_where=sa.text("state IN ('offered', 'accepted')"),
    )
    op.create_index("ix_attempts_task_seq", "attempts", ["task_seq"], unique=False)


def _blob_pins() -> None:
    op.create_table(
        "blob_pins",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "holder", name="pk_blob_pins"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_blob_pins_holder", "blob_pins", ["holder"], unique=False)


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("verified_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", "digest", name="pk_blobs"),
        sqlite_with_rowid=False,
    )


def _cordons() -> None:
    op.create_table(
        "cordons",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "kind", name="pk_cordons"),
        sqlite_with_rowid=False,
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("workflow_id", sa.String(), nullable=True),
        sa.Column("workflow_seq", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_workflow_seq", "events", ["workflow_seq"], unique=False)


def _journal_records() -> None:
    op.create_table(
        "journal_records",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("launch_number", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "launch_number", "seq", name="pk_journal_records"),
        sqlite_with_rowid=False,
    )


def _launches() -> None:
    op.create_table(
        "launches",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("launch", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=True),
        sa.Column("checkpoint", sa.String(), nullable=True),
        sa.Column("hidden_after", sa.Integer(), nullable=True),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "launch", name="pk_launches"),
        sqlite_with_rowid=False,
    )


def _log_chunks() -> None:
    op.create_table(
        "log_chunks",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "end", name="pk_log_chunks"),
        sqlite_with_rowid=False,
    )


def _log_streams() -> None:
    op.create_table(
        "log_streams",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_log_streams"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_log_streams_task_id", "log_streams", ["task_id"], unique=False)


def _meta() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )


def _metric_points() -> None:
    op.create_table(
        "metric_points",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("launch_number", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("series", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Double(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("window_from", sa.BigInteger(), nullable=True),
        sa.Column("window_to", sa.BigInteger(), nullable=True),
        sa.Column("values_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "launch_number", "seq", name="pk_metric_points"),
        sqlite_with_rowid=False,
    )


def _requirements() -> None:
    op.create_table(
        "requirements",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_requirements"),
        sqlite_with_rowid=False,
    )


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_sessions"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"], unique=False)


def _task_documents() -> None:
    op.create_table(
        "task_documents",
        sa.Column("task_seq", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("task_seq", name="pk_task_documents"),
    )


def _task_inputs() -> None:
    op.create_table(
        "task_inputs",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("artifact_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "artifact_id", name="pk_task_inputs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_task_inputs_artifact_id", "task_inputs", ["artifact_id"], unique=False)


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("workflow_seq", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("slot_class", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("parent_task_id", sa.String(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("requirement_key", sa.String(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("backoff_s", sa.Double(), nullable=False),
        sa.Column("retry_on", sa.String(), nullable=True),
        sa.Column("on_lost", sa.String(), nullable=False),
        sa.Column("max_runtime_s", sa.Double(), nullable=True),
        sa.Column("queue_deadline", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("desired", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reached", sa.Integer(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=True),
        sa.Column("ready_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_tasks"),
        sa.UniqueConstraint("id", name="uq_tasks_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_tasks_delayed",
        "tasks",
        ["ready_at"],
        unique=False,
        sqlite_where=sa.text("status = 'queued' AND ready_at > 0"),
        postgresql_where=sa.text("status = 'queued' AND ready_at > 0"),
    )
    op.create_index(
        "ix_tasks_expiring",
        "tasks",
        ["queue_deadline"],
        unique=False,
        sqlite_where=sa.text("status = 'queued' AND queue_deadline IS NOT NULL"),
        postgresql_where=sa.text("status = 'queued' AND queue_deadline IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_queue",
        "tasks",
        ["requirement_key", "rank"],
        unique=False,
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index("ix_tasks_workflow_seq", "tasks", ["workflow_seq"], unique=False)


def _void_offers() -> None:
    op.create_table(
        "void_offers",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "worker_id", name="pk_void_offers"),
        sqlite_with_rowid=False,
    )


def _discards() -> None:
    op.create_table(
        "discards",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "task_id", name="pk_discards"),
        sqlite_with_rowid=False,
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("state_id", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("capabilities", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sqlite_with_rowid=False,
    )


def _workflow_documents() -> None:
    op.create_table(
        "workflow_documents",
        sa.Column("workflow_seq", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_seq", name="pk_workflow_documents"),
    )


def _workflows() -> None:
    op.create_table(
        "workflows",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("open_tasks", sa.Integer(), nullable=False),
        sa.Column("failed_tasks", sa.Integer(), nullable=False),
        sa.Column("cancelled_tasks", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("request_hash", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_workflows"),
        sa.UniqueConstraint("id", name="uq_workflows_id"),
        sa.UniqueConstraint("project", "owner", "idempotency_key", name="uq_workflows_project_owner_idempotency_key"),
        sqlite_autoincrement=True,
    )


def upgrade() -> None:
    _api_keys()
    _artifact_files()
    _artifacts()
    _attempts()
    _blob_pins()
    _blobs()
    _cordons()
    _events()
    _journal_records()
    _launches()
    _log_chunks()
    _log_streams()
    _meta()
    _metric_points()
    _requirements()
    _sessions()
    _task_documents()
    _task_inputs()
    _tasks()
    _void_offers()
    _discards()
    _workers()
    _workflow_documents()
    _workflows()
