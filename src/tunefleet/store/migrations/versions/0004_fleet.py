"""Pipelines, parts and merged tasks, what was decided about workers, and notifications."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _pipelines() -> None:
    op.create_table(
        "task_edges",
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("upstream_seq", sa.BigInteger(), nullable=False),
        sa.Column("upstream_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "upstream_seq", name="pk_task_edges"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_task_edges_upstream_seq", "task_edges", ["upstream_seq"], unique=False)
    op.create_table(
        "shards",
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent_seq", sa.BigInteger(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_shards"),
    )
    op.create_index("ix_shards_parent_seq", "shards", ["parent_seq"], unique=False)
    op.add_column("workflows", sa.Column("retried_as", sa.String(), nullable=True))
    op.add_column("task_documents", sa.Column("resolved", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("merge_key", sa.String(), nullable=True))
    merging = sa.text("status = 'queued' AND merge_key IS NOT NULL")
    op.create_index(
        "ix_tasks_merging", "tasks", ["merge_key", "rank"], unique=False, sqlite_where=merging, postgresql_where=merging
    )
    op.add_column("attempts", sa.Column("merged_into", sa.String(), nullable=True))
    op.add_column("attempts", sa.Column("gpus", sa.Text(), nullable=True))


def _channels() -> None:
    op.create_table(
        "notification_channels",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
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


def _notifications() -> None:
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
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
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
    op.create_index("ix_notifications_task_id", "notifications", ["task_id"], unique=False)
    due = sa.text("state = 'waiting'")
    op.create_index(
        "ix_notifications_due", "notifications", ["next_at"], unique=False, sqlite_where=due, postgresql_where=due
    )


def upgrade() -> None:
    _pipelines()
    op.create_table(
        "worker_controls",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("cordoned_at", sa.Double(), nullable=True),
        sa.Column("drains", sa.Integer(), nullable=False),
        sa.Column("elastic_disabled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("worker_id", name="pk_worker_controls"),
        sqlite_with_rowid=False,
    )
    _channels()
    _notifications()
    # Written since 0003, and never read.
    op.drop_column("training_jobs", "registered")
