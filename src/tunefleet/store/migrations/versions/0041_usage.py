"""What each attempt has used, and the energy of those that run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the changes."""
    op.create_table(
        "usage",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("gpu_model", sa.String(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("share_s", sa.Double(), nullable=False),
        sa.Column("energy_wh", sa.Double(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_usage"),
        sqlite_autoincrement=True,
    )
    on_gpus = sa.text("gpu_s > 0")
    op.create_index("ix_usage_ended_at", "usage", ["ended_at"], unique=False)
    op.create_index(
        "ix_usage_gpu", "usage", ["project", "ended_at"], unique=False, sqlite_where=on_gpus, postgresql_where=on_gpus
    )
    op.create_table(
        "attempt_energy",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("joules", sa.Double(), nullable=False),
        sa.Column("power_w", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_attempt_energy"),
        sqlite_with_rowid=False,
    )
