"""Attempts that are one node of a training on several workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0070"
down_revision = "0063"
branch_labels = None
depends_on = None

_GANG = sa.text("gang_of IS NOT NULL")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("gang_of", sa.String(), nullable=True))
    op.add_column("attempts", sa.Column("node_rank", sa.Integer(), nullable=True))
    op.add_column("attempts", sa.Column("gang_point", sa.String(), nullable=True))
    op.add_column("attempts", sa.Column("gang_failed_at", sa.Double(), nullable=True))
    op.create_index(
        "ix_attempts_gang", "attempts", ["gang_of"], unique=False, sqlite_where=_GANG, postgresql_where=_GANG
    )
