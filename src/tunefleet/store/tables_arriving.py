"""The table of files that workers send to the object store themselves; part of the schema of `tables`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, String, Table, UniqueConstraint

from tunefleet.store.tables import metadata

arriving_files = Table(
    "arriving_files",
    metadata,
    Column("name", String, primary_key=True),
    Column("attempt_id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("part_bytes", BigInteger, nullable=False),
    Column("ref", String, nullable=False),
    Column("begun_at", Double, nullable=False),
    Column("busy_until", Double, nullable=False),
    UniqueConstraint("attempt_id", "digest", name="uq_arriving_files_attempt_id"),
    Index("ix_arriving_files_busy_until", "busy_until"),
    sqlite_with_rowid=False,
)
"""`name` is that of the place in the store, `ref` what the store calls the upload. Nobody gives a file up as long as
`busy_until`, a Unix time, is younger than the grace of garbage: somebody goes on with it, or it is being read."""
