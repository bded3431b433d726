"""Hyperparameter sweeps and their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

_ACTIVE = sa.text("status IN ('running', 'stopping')")
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("outcome", sa.String()),
        sa.Column("reason", sa.Text()),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("seq", name="pk_sweeps"),
        sa.UniqueConstraint("id", name="uq_sweeps_id"),
        sa.UniqueConstraint("project", "owner", "idempotency_key", name="uq_sweeps_project_owner_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sweeps_active", "sweeps", ["seq"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE)
    op.create_table(
        "sweep_trials",
        sa.Column("sweep_seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("task_id", sa.String()),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("evaluations", sa.Text(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("steps", sa.Integer()),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("sweep_seq", "number", name="pk_sweep_trials"),
        sqlite_with_rowid=False,
    )
