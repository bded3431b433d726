"""Tables of campaigns and of their models; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

_RUNNING: Final = text("status = 'running'")
_TO_CANCEL: Final = text("to_cancel = 1")
_PROMOTED: Final = text("stage = 'promoted'")

# `by_config`: whether the configuration disabled it; `cycles`: number of opened cycles, also the number of the next
# one; `next_at`: earliest start of the next cycle; `failures`: consecutive failed cycles; `holder`: process that works
# on it until `lease_until`.
campaigns = Table(
    "campaigns",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", Text),
    Column("by_config", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("cycles", Integer, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("holder", String),
    Column("lease_until", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    UniqueConstraint("project", "owner", "name"),
    sqlite_autoincrement=True,
)

# `position`: chunk number over all epochs; `step`: the next step, which failed `tries` times in a row.
#
# `retried`: number of manual retries; `orders`: number of provider tasks that were replaced by another one;
# `to_cancel`: whether the provider's task must be cancelled; `spec`: configuration of the cycle; `activity`: progress
# of the current step.
#
campaign_cycles = Table(
    "campaign_cycles",
    metadata,
    Column("campaign_seq", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("step", String, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("waiting", Text),
    Column("error", Text),
    Column("retried", Integer, nullable=False),
    Column("orders", Integer, nullable=False),
    Column("to_cancel", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("activity", Text),
    Index("ix_campaign_cycles_running", "campaign_seq", sqlite_where=_RUNNING),
    Index("ix_campaign_cycles_to_cancel", "campaign_seq", sqlite_where=_TO_CANCEL),
    sqlite_with_rowid=False,
)

# `intent` and `outcome` are JSON. The intent is stored before the step acts, so that a restarted server can find out
# whether it took effect.
campaign_steps = Table(
    "campaign_steps",
    metadata,
    Column("campaign_seq", BigInteger, primary_key=True),
    Column("cycle", Integer, primary_key=True),
    Column("step", String, primary_key=True),
    Column("status", String, nullable=False),
    Column("intent", Text),
    Column("outcome", Text),
    Column("error", Text),
    Column("begun_at", Double, nullable=False),
    Column("finished_at", Double),
    sqlite_with_rowid=False,
)

# The unique constraint makes recording idempotent: one cost per `what` and `key`.
campaign_spend = Table(
    "campaign_spend",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("campaign_seq", BigInteger, nullable=False),
    Column("cycle", Integer, nullable=False),
    Column("what", String, nullable=False),
    Column("key", String, nullable=False),
    Column("amount", Double, nullable=False),
    Column("at", Double, nullable=False),
    UniqueConstraint("campaign_seq", "what", "key"),
    sqlite_autoincrement=True,
)

campaign_log = Table(
    "campaign_log",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("campaign_seq", BigInteger, nullable=False),
    Column("cycle", Integer),
    Column("step", String),
    Column("level", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_campaign_log_campaign_seq", "campaign_seq", "seq"),
    sqlite_autoincrement=True,
)

# At most one version per name is promoted. `key`: the try of a cycle that produced it.
#
# `task_id`: the task that produced it, which is kept while the version may be in use. `location`, `lineage` and
# `evaluation` are JSON.
model_versions = Table(
    "model_versions",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("project", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("stage", String, nullable=False),
    Column("form", String, nullable=False),
    Column("campaign_id", String, nullable=False),
    Column("cycle", Integer, nullable=False),
    Column("key", String, nullable=False),
    Column("task_id", String, index=True),
    Column("location", Text, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("evaluation", Text, nullable=False),
    Column("reason", Text),
    Column("created_at", Double, nullable=False),
    Column("promoted_at", Double),
    UniqueConstraint("project", "owner", "name", "version"),
    UniqueConstraint("key"),
    Index(
        "uq_model_versions_promoted",
        "project", "owner", "name", unique=True, sqlite_where=_PROMOTED,
    ),
    sqlite_autoincrement=True,
)  # fmt: skip
