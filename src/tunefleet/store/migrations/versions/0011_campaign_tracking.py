"""What trackers are told of the cycles of campaigns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "campaign_tracking",
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("tracker", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("told_at", sa.Double(), nullable=True),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("campaign_seq", "cycle", "tracker", name="pk_campaign_tracking"),
        sqlite_with_rowid=False,
    )
    untold = sa.text("told_at IS NULL")
    op.create_index(
        "ix_campaign_tracking_untold",
        "campaign_tracking",
        ["not_before"],
        sqlite_where=untold,
        postgresql_where=untold,
    )
