"""Files that workers send to the object store themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0063"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arriving_files",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("busy_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_arriving_files"),
        sa.UniqueConstraint("attempt_id", "digest", name="uq_arriving_files_attempt_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_arriving_files_busy_until", "arriving_files", ["busy_until"], unique=False)
