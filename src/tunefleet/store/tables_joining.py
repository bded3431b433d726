"""The table of invitations; part of the schema of `tables`."""

from __future__ import annotations

from sqlalchemy import Column, Double, String, Table, Text

from tunefleet.store.tables import SERIAL, metadata

invitations = Table(
    "invitations",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("token_hash", String, nullable=False, unique=True),
    Column("worker_id", String),
    Column("tags", Text),
    Column("owner", String, nullable=False),
    Column("created_by", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("used_at", Double),
    Column("key_id", String, index=True),
    sqlite_autoincrement=True,
)
"""Tokens with which a machine joins, once; `worker_id` and `tags` (JSON) bind whoever joins, `key_id` is its key."""
