"""The tables of several servers on one database; part of the schema of `tables`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table

from tunefleet.store.tables import metadata

leader = Table(
    "leader",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("server_id", String),
    Column("process", String),
    Column("url", String),
    Column("renewals", BigInteger, nullable=False),
    Column("since", Double, nullable=False),
)
"""One row: who leads. `epoch` grows with each leader; without a `server_id` the last one has given it back."""

servers = Table(
    "servers",
    metadata,
    Column("id", String, primary_key=True),
    Column("process", String, nullable=False),
    Column("host", String, nullable=False),
    Column("url", String),
    Column("version", String, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("renewals", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The servers that are there; one that was killed stays until others have missed it for long."""
