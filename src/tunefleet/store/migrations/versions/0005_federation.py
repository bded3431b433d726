"""Federations: their members, rounds, updates, versions and chunks; and which events are theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _serial() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _federations() -> None:
    op.create_table(
        "federations",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
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
        sa.PrimaryKeyConstraint("seq", name="pk_federations"),
        sa.UniqueConstraint("id", name="uq_federations_id"),
        sqlite_autoincrement=True,
    )
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
        sa.PrimaryKeyConstraint("federation_seq", "worker", name="pk_federation_members"),
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
    is_open = sa.text("status IN ('sampling', 'collecting', 'aggregating', 'publishing')")
    op.create_index(
        "ix_federation_rounds_open",
        "federation_rounds",
        ["federation_seq"],
        unique=False,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def _updates() -> None:
    op.create_table(
        "federation_updates",
        sa.Column("seq", _serial(), autoincrement=True, nullable=False),
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
        sa.PrimaryKeyConstraint("seq", name="pk_federation_updates"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_federation_updates_round", "federation_updates", ["federation_seq", "round"], unique=False)
    op.create_index(
        "ix_federation_updates_worker", "federation_updates", ["federation_seq", "worker", "step"], unique=False
    )
    for name, columns, where in (
        ("counted", ["federation_seq", "round", "worker"], sa.text("state = 'counted'")),
        ("waiting", ["federation_seq", "worker"], sa.text("state = 'waiting'")),
    ):
        op.create_index(
            f"uq_federation_updates_{name}",
            "federation_updates",
            columns,
            unique=True,
            sqlite_where=where,
            postgresql_where=where,
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
        sa.Column("archive_digest", sa.String(), nullable=False),
        sa.Column("archive_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state_digest", sa.String(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("federation_seq", "version", name="pk_federation_versions"),
        sqlite_with_rowid=False,
    )
    of_a_round = sa.text("round IS NOT NULL")
    op.create_index(
        "uq_federation_versions_round",
        "federation_versions",
        ["federation_seq", "round"],
        unique=True,
        sqlite_where=of_a_round,
        postgresql_where=of_a_round,
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


def upgrade() -> None:
    _federations()
    _rounds()
    _updates()
    _versions()
    op.add_column("events", sa.Column("federation_seq", sa.BigInteger(), nullable=True))
    theirs = sa.text("federation_seq IS NOT NULL")
    op.create_index(
        "ix_events_federation_seq",
        "events",
        ["federation_seq"],
        unique=False,
        sqlite_where=theirs,
        postgresql_where=theirs,
    )
