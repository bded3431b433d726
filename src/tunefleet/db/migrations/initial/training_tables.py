"""Tables of federations with their rounds, and of campaigns with their cycles and models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tunefleet.db.migrations.initial import SERIAL, only


def _federations() -> None:
    op.create_table(
        "federations",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("contract", sa.Text(), nullable=True),
        sa.Column("callback_secret", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("task_seq", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_federations"),
        sa.UniqueConstraint("id", name="uq_federations_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_federations_task_seq", "federations", ["task_seq"])
    op.create_table(
        "federation_members",
        sa.Column("federation_seq", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("updates", sa.Integer(), nullable=False),
        sa.Column("num_examples", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("values_digest", sa.String(), nullable=True),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("federation_seq", "worker", name="pk_federation_members"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "federation_tokens",
        sa.Column("federation_id", sa.String(), nullable=False),
        sa.Column("serial", sa.Integer(), nullable=False),
        sa.Column("old_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("federation_id", name="pk_federation_tokens"),
        sqlite_with_rowid=False,
    )


def _rounds() -> None:
    op.create_table(
        "federation_rounds",
        sa.Column("federation_seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("participants", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("federation_seq", "number", name="pk_federation_rounds"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_federation_rounds_open",
        "federation_rounds",
        ["federation_seq"],
        **only("status IN ('sampling', 'collecting', 'aggregating', 'publishing')"),
    )
    op.create_table(
        "federation_chunks",
        sa.Column("federation_seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("federation_seq", "number", name="pk_federation_chunks"),
        sqlite_with_rowid=False,
    )


def _updates() -> None:
    op.create_table(
        "federation_updates",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("federation_seq", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("num_examples", sa.BigInteger(), nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=True),
        sa.Column("upload_digest", sa.String(), nullable=True),
        sa.Column("model_digest", sa.String(), nullable=True),
        sa.Column("values_digest", sa.String(), nullable=True),
        sa.Column("config", sa.Text(), nullable=True),
        sa.Column("tokenizer", sa.Text(), nullable=False),
        sa.Column("upload_dtype", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("norm", sa.Double(), nullable=True),
        sa.Column("loss_before", sa.Double(), nullable=True),
        sa.Column("loss_after", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("rows_before", sa.BigInteger(), nullable=True),
        sa.Column("rows_after", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_federation_updates"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_federation_updates_round", "federation_updates", ["federation_seq", "round"])
    op.create_index("ix_federation_updates_worker", "federation_updates", ["federation_seq", "worker", "step"])
    op.create_index(
        "uq_federation_updates_counted",
        "federation_updates",
        ["federation_seq", "round", "worker"],
        unique=True,
        **only("state = 'counted'"),
    )
    op.create_index(
        "uq_federation_updates_waiting",
        "federation_updates",
        ["federation_seq", "worker"],
        unique=True,
        **only("state = 'waiting'"),
    )


def _versions() -> None:
    op.create_table(
        "federation_versions",
        sa.Column("federation_seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("equals", sa.Integer(), nullable=True),
        sa.Column("artifact_id", sa.String(), nullable=False),
        sa.Column("strategy", sa.String(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("archive_digest", sa.String(), nullable=True),
        sa.Column("archive_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("state_digest", sa.String(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("federation_seq", "version", name="pk_federation_versions"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "uq_federation_versions_round",
        "federation_versions",
        ["federation_seq", "round"],
        unique=True,
        **only("round IS NOT NULL"),
    )


def _campaigns() -> None:
    op.create_table(
        "campaigns",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
    op.create_index("ix_campaign_tracking_untold", "campaign_tracking", ["not_before"], **only("told_at IS NULL"))


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
        sa.Column("activity", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("campaign_seq", "number", name="pk_campaign_cycles"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_campaign_cycles_running", "campaign_cycles", ["campaign_seq"], **only("status = 'running'"))
    op.create_index("ix_campaign_cycles_to_cancel", "campaign_cycles", ["campaign_seq"], **only("to_cancel = 1"))
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


def _ledger() -> None:
    op.create_table(
        "campaign_spend",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("campaign_seq", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=True),
        sa.Column("step", sa.String(), nullable=True),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_campaign_log"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_campaign_log_campaign_seq", "campaign_log", ["campaign_seq", "seq"])


def _models() -> None:
    op.create_table(
        "model_versions",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
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
    op.create_index("ix_model_versions_task_id", "model_versions", ["task_id"])
    op.create_index(
        "uq_model_versions_promoted",
        "model_versions",
        ["project", "owner", "name"],
        unique=True,
        **only("stage = 'promoted'"),
    )


def create() -> None:
    """Create the tables."""
    _federations()
    _rounds()
    _updates()
    _versions()
    _campaigns()
    _cycles()
    _ledger()
    _models()
