"""The tables of tasks that get nodes from Slurm or Ray; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, text

from tunefleet.store.tables import SERIAL, metadata

_LIVE: Final = text("state <> 'ended'")

task_engines = Table(
    "task_engines",
    metadata,
    Column("task_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", String, nullable=False),
    Column("engine", String, nullable=False),
    sqlite_with_rowid=False,
)
"""Tasks that name an engine; the others get what workers are there."""

cluster_jobs = Table(
    "cluster_jobs",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("task_seq", BigInteger, nullable=False),
    Column("task_id", String, nullable=False),
    Column("engine", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("job_id", String),
    Column("key_id", String, nullable=False),
    Column("told", Text),
    Column("used", Integer, nullable=False, server_default="0"),
    Column("barren", Integer, nullable=False, server_default="0"),
    Column("made_at", Double, nullable=False),
    Column("running_at", Double),
    Column("leaving_at", Double),
    Column("ended_at", Double),
    Index("ix_cluster_jobs_task_seq", "task_seq"),
    Index("ix_cluster_jobs_key_id", "key_id"),
    Index("ix_cluster_jobs_live", "state", sqlite_where=_LIVE),
    sqlite_autoincrement=True,
)
"""What was asked of a cluster for a task: `submitting`, `waiting` for its nodes, `running`, `leaving` since the task
needs it no more, `ended`. `told`: why it stands there, in the cluster's words; `used`: whether a worker of it took the
task; `barren`: whether it ended without that, though the task waited; `key_id`: the key of its workers, good for that
task alone."""
