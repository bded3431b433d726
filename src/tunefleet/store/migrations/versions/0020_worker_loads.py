"""How busy workers were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_loads",
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "at", name="pk_worker_loads"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_worker_loads_at", "worker_loads", ["at"], unique=False)
