"""The table of what trackers are told of cycles; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, text

from tunefleet.store.tables import metadata

_UNTOLD: Final = text("told_at IS NULL")

campaign_tracking = Table(
    "campaign_tracking",
    metadata,
    Column("campaign_seq", BigInteger, primary_key=True),
    Column("cycle", Integer, primary_key=True),
    Column("tracker", String, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("recorded_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("told_at", Double),
    Column("place", Text),
    Column("error", Text),
    Index("ix_campaign_tracking_untold", "not_before", sqlite_where=_UNTOLD),
    sqlite_with_rowid=False,
)
"""One row for each tracker of a cycle whose model was recorded: what it is told is derived from the cycle's steps.

`revision`: how often the cycle was recorded anew, after its model was merged again; `recorded_at`: when it was last.
It is told at `told_at`, after `tries` failures of which `error` was the last one, and lies at `place`.
"""
