"""Tokens of federations that were replaced."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "federation_tokens",
        sa.Column("federation_id", sa.String(), nullable=False),
        sa.Column("serial", sa.Integer(), nullable=False),
        sa.Column("old_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("federation_id", name="pk_federation_tokens"),
        sqlite_with_rowid=False,
    )
