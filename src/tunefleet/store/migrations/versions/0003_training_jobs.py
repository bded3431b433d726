"""Jobs that agents report of in the training-agent protocol."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "training_jobs",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("registered", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("resumed_from", sa.String(), nullable=True),
        sa.Column("checkpoint", sa.String(), nullable=True),
        sa.Column("updates", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_training_jobs"),
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
    op.create_index("ix_reported_lines_task_id", "reported_lines", ["task_id"], unique=False)
