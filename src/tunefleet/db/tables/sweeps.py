"""Tables of hyperparameter sweeps; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

_ACTIVE: Final = text("status IN ('running', 'stopping')")

# `document`: the workflow file without `sweep`; `inputs`: JSON, pointer into the spec → digest of an uploaded artifact.
#
# `outcome`: the status that follows once the last trial has ended; `reason`: why it ended or what it waits for.
sweeps = Table(
    "sweeps",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("status", String, nullable=False),
    Column("outcome", String),
    Column("reason", Text),
    Column("spec", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("idempotency_key", String),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    UniqueConstraint("project", "owner", "idempotency_key"),
    Index("ix_sweeps_active", "seq", sqlite_where=_ACTIVE),
    sqlite_autoincrement=True,
)

# `parameters`: JSON, path → value; `attributes`: JSON, what sampler and pruner keep of a trial; `evaluations`: JSON, a
# list of step and value; `gpu_s`: GPU seconds, once it has ended; `task_id`: null if its values were invalid together.
sweep_trials = Table(
    "sweep_trials",
    metadata,
    Column("sweep_seq", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", String, nullable=False),
    Column("task_id", String),
    Column("parameters", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("evaluations", Text, nullable=False),
    Column("value", Double),
    Column("steps", Integer),
    Column("gpu_s", Double, nullable=False),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    sqlite_with_rowid=False,
)
