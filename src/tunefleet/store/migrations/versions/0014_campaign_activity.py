"""How far the current step of a cycle is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("campaign_cycles", sa.Column("activity", sa.Text(), nullable=True))
