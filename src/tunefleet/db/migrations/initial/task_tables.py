"""Tables of keys, workflows, tasks with attempts and commands, workers and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tunefleet.db.migrations.initial import SERIAL, only


def _access() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("gpu_hours", sa.Double(), nullable=True),
        sa.Column("storage_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("archived_at", sa.Double(), nullable=True),
        sa.Column("document_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "api_keys",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_sessions"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_table(
        "invitations",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_invitations"),
        sa.UniqueConstraint("id", name="uq_invitations_id"),
        sa.UniqueConstraint("token_hash", name="uq_invitations_token_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_invitations_key_id", "invitations", ["key_id"])


def _workflows() -> None:
    op.create_table(
        "workflows",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
        sa.Column("retried_as", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_workflows"),
        sa.UniqueConstraint("id", name="uq_workflows_id"),
        sa.UniqueConstraint("project", "owner", "idempotency_key", name="uq_workflows_project_owner_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workflow_documents",
        sa.Column("workflow_seq", SERIAL, autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_seq", name="pk_workflow_documents"),
    )
    op.create_table(
        "requirements",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_requirements"),
        sqlite_with_rowid=False,
    )


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
        sa.Column("stalled_since", sa.Double(), nullable=True),
        sa.Column("merge_key", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_tasks"),
        sa.UniqueConstraint("id", name="uq_tasks_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tasks_delayed", "tasks", ["ready_at"], **only("status = 'queued' AND ready_at > 0"))
    op.create_index(
        "ix_tasks_expiring", "tasks", ["queue_deadline"], **only("status = 'queued' AND queue_deadline IS NOT NULL")
    )
    op.create_index(
        "ix_tasks_merging", "tasks", ["merge_key", "rank"], **only("status = 'queued' AND merge_key IS NOT NULL")
    )
    op.create_index("ix_tasks_queue", "tasks", ["requirement_key", "project", "rank"], **only("status = 'queued'"))
    op.create_index("ix_tasks_set_aside", "tasks", ["status", "kind"], **only("status IN ('pending', 'paused')"))
    op.create_index("ix_tasks_workflow_seq", "tasks", ["workflow_seq"])


def _of_tasks() -> None:
    op.create_table(
        "task_documents",
        sa.Column("task_seq", SERIAL, autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("resolved", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("task_seq", name="pk_task_documents"),
    )
    op.create_table(
        "task_inputs",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("artifact_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "artifact_id", name="pk_task_inputs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_task_inputs_artifact_id", "task_inputs", ["artifact_id"])
    op.create_table(
        "task_edges",
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("upstream_seq", sa.BigInteger(), nullable=False),
        sa.Column("upstream_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "upstream_seq", name="pk_task_edges"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_task_edges_upstream_seq", "task_edges", ["upstream_seq"])
    op.create_table(
        "shards",
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent_seq", sa.BigInteger(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_shards"),
    )
    op.create_index("ix_shards_parent_seq", "shards", ["parent_seq"])
    op.create_table(
        "task_traces",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("traceparent", sa.String(), nullable=False),
        sa.Column("parent", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name="pk_task_traces"),
        sqlite_with_rowid=False,
    )


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
        sa.Column("merged_into", sa.String(), nullable=True),
        sa.Column("gpus", sa.Text(), nullable=True),
        sa.Column("gang_of", sa.String(), nullable=True),
        sa.Column("node_rank", sa.Integer(), nullable=True),
        sa.Column("gang_point", sa.String(), nullable=True),
        sa.Column("gang_failed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_attempts_gang", "attempts", ["gang_of"], **only("gang_of IS NOT NULL"))
    op.create_index("ix_attempts_open", "attempts", ["worker_id"], **only("state IN ('offered', 'accepted')"))
    op.create_index("ix_attempts_task_seq", "attempts", ["task_seq"])
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
    op.create_table(
        "resumes",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("from_task_id", sa.String(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("bound", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_resumes"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "void_offers",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "worker_id", name="pk_void_offers"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cordons",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "kind", name="pk_cordons"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "discards",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "task_id", name="pk_discards"),
        sqlite_with_rowid=False,
    )


def _commands() -> None:
    op.create_table(
        "commands",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("command", sa.String(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_commands_open", "commands", ["worker_id"], **only("state IN ('pending', 'acknowledged', 'applied')")
    )
    op.create_index("ix_commands_task_id", "commands", ["task_id"])
    op.create_table(
        "events",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("workflow_id", sa.String(), nullable=True),
        sa.Column("workflow_seq", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("federation_seq", sa.BigInteger(), nullable=True),
        sa.Column("campaign_seq", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_campaign_seq", "events", ["campaign_seq"], **only("campaign_seq IS NOT NULL"))
    op.create_index("ix_events_federation_seq", "events", ["federation_seq"], **only("federation_seq IS NOT NULL"))
    op.create_index("ix_events_workflow_seq", "events", ["workflow_seq"])


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
    op.create_table(
        "worker_controls",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("cordoned_at", sa.Double(), nullable=True),
        sa.Column("drains", sa.Integer(), nullable=False),
        sa.Column("elastic_disabled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("worker_id", name="pk_worker_controls"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "worker_loads",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "at", name="pk_worker_loads"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_worker_loads_at", "worker_loads", ["at"])


def create() -> None:
    """Create the tables."""
    _access()
    _workflows()
    _tasks()
    _of_tasks()
    _attempts()
    _commands()
    _workers()
