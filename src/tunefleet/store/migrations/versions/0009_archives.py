"""Archives of versions are made when somebody asks for them: a new version has none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("federation_versions", table_kwargs={"sqlite_with_rowid": False}) as table:
        table.alter_column("archive_digest", existing_type=sa.String(), nullable=True)
        table.alter_column("archive_size_bytes", existing_type=sa.BigInteger(), nullable=True)
