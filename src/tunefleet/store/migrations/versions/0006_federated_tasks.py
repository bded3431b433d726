"""Federations that a training task has made, over its parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("federations", sa.Column("task_seq", sa.BigInteger(), nullable=True))
    op.create_index("ix_federations_task_seq", "federations", ["task_seq"], unique=False)
