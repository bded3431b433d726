"""Tables of metrics, logs, artifacts, notifications and usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tunefleet.db.migrations.initial import SERIAL, only


def _metrics() -> None:
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
        sa.Column("curve", sa.BigInteger(), nullable=False),
        sa.Column("values_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "launch_number", "seq", name="pk_metric_points"),
        sqlite_with_rowid=False,
    )
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
    op.create_table(
        "journal_room",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("characters", sa.BigInteger(), nullable=False),
        sa.Column("point_characters", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_journal_room"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reported_predictions",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("launch_number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "launch_number", "digest", name="pk_reported_predictions"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "training_jobs",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("resumed_from", sa.String(), nullable=True),
        sa.Column("checkpoint", sa.String(), nullable=True),
        sa.Column("updates", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_training_jobs"),
        sqlite_with_rowid=False,
    )


def _logs() -> None:
    op.create_table(
        "log_streams",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_log_streams"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_log_streams_task_id", "log_streams", ["task_id"])
    op.create_table(
        "log_chunks",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "end", name="pk_log_chunks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reported_lines",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_reported_lines"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_reported_lines_task_id", "reported_lines", ["task_id"])


def _artifacts() -> None:
    op.create_table(
        "blobs",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("verified_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", "digest", name="pk_blobs"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "blob_pins",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "holder", name="pk_blob_pins"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_blob_pins_holder", "blob_pins", ["holder"])
    op.create_table(
        "artifacts",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_index("ix_artifacts_name", "artifacts", ["name"])
    op.create_index("ix_artifacts_task_id", "artifacts", ["task_id"])
    op.create_table(
        "artifact_files",
        sa.Column("artifact_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", "path", name="pk_artifact_files"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_artifact_files_digest", "artifact_files", ["digest"])
    op.create_table(
        "arriving_files",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("busy_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_arriving_files"),
        sa.UniqueConstraint("attempt_id", "digest", name="uq_arriving_files_attempt_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_arriving_files_busy_until", "arriving_files", ["busy_until"])


def _notifications() -> None:
    op.create_table(
        "notification_channels",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(), nullable=True),
        sa.Column("events", sa.String(), nullable=False),
        sa.Column("everyone", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_notification_channels"),
        sa.UniqueConstraint("id", name="uq_notification_channels_id"),
        sa.UniqueConstraint("project", "owner", "name", name="uq_notification_channels_project_owner_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "task_notices",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("channel_id", sa.String(), nullable=True),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("events", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "number", name="pk_task_notices"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "notifications",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("channel_id", sa.String(), nullable=True),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_notifications"),
        sa.UniqueConstraint("id", name="uq_notifications_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notifications_due", "notifications", ["next_at"], **only("state = 'waiting'"))
    op.create_index("ix_notifications_task_id", "notifications", ["task_id"])


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("gpu_model", sa.String(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("share_s", sa.Double(), nullable=False),
        sa.Column("energy_wh", sa.Double(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_usage"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_usage_ended_at", "usage", ["ended_at"])
    op.create_index("ix_usage_gpu", "usage", ["project", "ended_at"], **only("gpu_s > 0"))
    op.create_table(
        "attempt_energy",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("joules", sa.Double(), nullable=False),
        sa.Column("power_w", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_attempt_energy"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit_log",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("role", sa.String(), nullable=True),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])


def _servers() -> None:
    op.create_table(
        "leader",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("server_id", sa.String(), nullable=True),
        sa.Column("process", sa.String(), nullable=True),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_leader"),
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("process", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
        sqlite_with_rowid=False,
    )


def _clusters() -> None:
    op.create_table(
        "task_engines",
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_task_engines"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cluster_jobs",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("told", sa.Text(), nullable=True),
        sa.Column("used", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("barren", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("running_at", sa.Double(), nullable=True),
        sa.Column("leaving_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_cluster_jobs"),
        sa.UniqueConstraint("name", name="uq_cluster_jobs_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_cluster_jobs_key_id", "cluster_jobs", ["key_id"])
    op.create_index("ix_cluster_jobs_live", "cluster_jobs", ["state"], **only("state <> 'ended'"))
    op.create_index("ix_cluster_jobs_task_seq", "cluster_jobs", ["task_seq"])


def create() -> None:
    """Create the tables."""
    _metrics()
    _logs()
    _artifacts()
    _notifications()
    _usage()
    _servers()
    _clusters()
