"""To which trace a task belongs, and an index that counts what is set aside."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0050"
branch_labels = None
depends_on = None

_SET_ASIDE = sa.text("status IN ('pending', 'paused')")


def upgrade() -> None:
    op.create_table(
        "task_traces",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("traceparent", sa.String(), nullable=False),
        sa.Column("parent", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name="pk_task_traces"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_tasks_set_aside",
        "tasks",
        ["status", "kind"],
        unique=False,
        sqlite_where=_SET_ASIDE,
        postgresql_where=_SET_ASIDE,
    )
