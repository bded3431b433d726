"""Tasks that get nodes from Slurm or Ray, and what was asked of it for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0071"
down_revision = "0070"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIVE = sa.text("state <> 'ended'")


def upgrade() -> None:
    op.create_table(
        "task_engines",
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_task_engines"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cluster_jobs",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("told", sa.Text(), nullable=True),
        sa.Column("used", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("barren", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("running_at", sa.Double(), nullable=True),
        sa.Column("leaving_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_cluster_jobs"),
        sa.UniqueConstraint("name", name="uq_cluster_jobs_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_cluster_jobs_task_seq", "cluster_jobs", ["task_seq"])
    op.create_index("ix_cluster_jobs_key_id", "cluster_jobs", ["key_id"])
    op.create_index("ix_cluster_jobs_live", "cluster_jobs", ["state"], sqlite_where=_LIVE, postgresql_where=_LIVE)
