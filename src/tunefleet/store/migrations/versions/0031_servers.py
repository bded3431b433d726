"""Several servers on one database: who they are, and who leads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leader",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("server_id", sa.String(), nullable=True),
        sa.Column("process", sa.String(), nullable=True),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_leader"),
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("process", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
        sqlite_with_rowid=False,
    )
