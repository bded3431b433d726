"""Invitations: tokens with which a machine joins as a worker, once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0042"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_invitations"),
        sa.UniqueConstraint("id", name="uq_invitations_id"),
        sa.UniqueConstraint("token_hash", name="uq_invitations_token_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_invitations_key_id", "invitations", ["key_id"], unique=False)
