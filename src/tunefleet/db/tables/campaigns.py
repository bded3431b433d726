"""The tables of campaigns and of the models that come of them; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint, text

from tunefleet.db.tables.core import SERIAL, metadata

_RUNNING: Final = text("status = 'running'")
_TO_CANCEL: Final = text("to_cancel = 1")
_PROMOTED: Final = text("stage = 'promoted'")

# `by_config`: whether it rests because its configuration says so; `cycles`: how many were opened, which is the number
# of the next one; `next_at`: when that may open; `failures`: of cycles, in a row. `holder` works on it until
# `lease_until`.
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

# `position`: which chunk it trains on, over all epochs; `step`: the next one, which failed `tries` times in a row.
#
# `retried`: how often somebody let it go back; `orders`: how often its task at the provider was given up for another;
# `to_cancel`: whether that task is to be cancelled; `spec`: what it runs with; `activity`: how far its step is.
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

# `intent` and `outcome` are JSON: what a step was about to do, and what it did.
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

# What was paid for: once for each `what` of a `key`.
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

# Models that campaigns made; of each name one version at most is promoted. `key`: of the try of a cycle that made it.
#
# `task_id`: whose result it is; that task stays while the version may be in use. `location`, `lineage` and `evaluation`
# are JSON.
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
