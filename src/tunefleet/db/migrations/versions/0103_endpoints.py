"""Endpoints: their names, tasks and usage, and keys that may only call them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("endpoint", sa.String(), nullable=True))
    op.create_table(
        "endpoints",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("idle_task_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_endpoints"),
        sa.UniqueConstraint("project", "name", name="uq_endpoints_project_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "endpoint_tasks",
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("endpoint_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_endpoint_tasks"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_endpoint_tasks_endpoint_seq", "endpoint_tasks", ["endpoint_seq"])
    op.create_table(
        "endpoint_usage",
        sa.Column("endpoint_seq", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_seq", "key_id", "day", name="pk_endpoint_usage"),
        sqlite_with_rowid=False,
    )
