"""Attempts of a federation's workers: which takes part, and whose an update is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("federation_members", sa.Column("attempt", sa.Integer(), nullable=True))
    op.add_column("federation_updates", sa.Column("attempt", sa.Integer(), nullable=True))
    op.add_column("federation_updates", sa.Column("rows_before", sa.BigInteger(), nullable=True))
