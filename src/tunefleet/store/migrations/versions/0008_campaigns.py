"""Campaigns with their cycles, ledger and log, and the registry of models; which events are theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_EVERYTHING = "done,failed,out_of_memory,stalled,paused,worker_lost"


def _serial() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _campaigns() -> None:
    op.create_table(
        "campaigns",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("by_config", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("cycles", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_campaigns"),
        sa.UniqueConstraint("id", name="uq_campaigns_id"),
        sa.UniqueConstraint("project", "owner", "name", name="uq_campaigns_project_owner_name"),
        sqlite_autoincrement=True,
    )


def _cycles() -> None:
    op.create_table(
        "campaign_cycles",
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("retried", sa.Integer(), nullable=False),
        sa.Column("orders", sa.Integer(), nullable=False),
        sa.Column("to_cancel", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("campaign_seq", "number", name="pk_campaign_cycles"),
        sqlite_with_rowid=False,
    )
    for name, where in (("running", sa.text("status = 'running'")), ("to_cancel", sa.text("to_cancel = 1"))):
        op.create_index(
            f"ix_campaign_cycles_{name}",
            "campaign_cycles",
            ["campaign_seq"],
            unique=False,
            sqlite_where=where,
            postgresql_where=where,
        )
    op.create_table(
        "campaign_steps",
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("intent", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("campaign_seq", "cycle", "step", name="pk_campaign_steps"),
        sqlite_with_rowid=False,
    )


def _ledger_and_log() -> None:
    op.create_table(
        "campaign_spend",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("amount", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_campaign_spend"),
        sa.UniqueConstraint("campaign_seq", "what", "key", name="uq_campaign_spend_campaign_seq_what_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "campaign_log",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=True),
        sa.Column("step", sa.String(), nullable=True),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_campaign_log"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_campaign_log_campaign_seq", "campaign_log", ["campaign_seq", "seq"], unique=False)


def _models() -> None:
    op.create_table(
        "model_versions",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("form", sa.String(), nullable=False),
        sa.Column("campaign_id", sa.String(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("evaluation", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_model_versions"),
        sa.UniqueConstraint("key", name="uq_model_versions_key"),
        sa.UniqueConstraint("project", "owner", "name", "version", name="uq_model_versions_project_owner_name_version"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_model_versions_task_id", "model_versions", ["task_id"], unique=False)
    promoted = sa.text("stage = 'promoted'")
    op.create_index(
        "uq_model_versions_promoted",
        "model_versions",
        ["project", "owner", "name"],
        unique=True,
        sqlite_where=promoted,
        postgresql_where=promoted,
    )


def _events() -> None:
    op.add_column("events", sa.Column("campaign_seq", sa.BigInteger(), nullable=True))
    theirs = sa.text("campaign_seq IS NOT NULL")
    op.create_index(
        "ix_events_campaign_seq", "events", ["campaign_seq"], unique=False, sqlite_where=theirs, postgresql_where=theirs
    )
    # Who wanted to be told everything is told what is new, too.
    channels = sa.table("notification_channels", sa.column("events", sa.String()))
    op.execute(
        channels.update().where(channels.c.events == _EVERYTHING).values(events=f"{_EVERYTHING},promoted,budget")
    )


def upgrade() -> None:
    _campaigns()
    _cycles()
    _ledger_and_log()
    _models()
    _events()
