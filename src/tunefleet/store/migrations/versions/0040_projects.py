"""Projects with their quotas and weights; the queue is read project by project."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the changes."""
    projects = op.create_table(
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
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
        sqlite_with_rowid=False,
    )
    first = {"name": "default", "weight": 1.0, "created_by": "tunefleet", "created_at": time.time()}
    op.bulk_insert(projects, [first])
    queued = sa.text("status = 'queued'")
    op.drop_index("ix_tasks_queue", "tasks")
    op.create_index(
        "ix_tasks_queue",
        "tasks",
        ["requirement_key", "project", "rank"],
        unique=False,
        sqlite_where=queued,
        postgresql_where=queued,
    )
