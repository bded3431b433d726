"""Commands for running tasks, where a task goes on, and since when one stands still."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


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
    op.create_index("ix_commands_task_id", "commands", ["task_id"], unique=False)
    open_ = sa.text("state IN ('pending', 'acknowledged', 'applied')")
    op.create_index(
        "ix_commands_open", "commands", ["worker_id"], unique=False, sqlite_where=open_, postgresql_where=open_
    )


def _resumes() -> None:
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


def upgrade() -> None:
    _commands()
    _resumes()
    op.add_column("tasks", sa.Column("stalled_since", sa.Double(), nullable=True))
