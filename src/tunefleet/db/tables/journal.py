"""The tables of what is known of a task's journals beside their records; part of the schema of `tables`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from tunefleet.db.tables.core import metadata

journal_room = Table(
    "journal_room",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("records", Integer, nullable=False),
    Column("characters", BigInteger, nullable=False),
    Column("point_characters", BigInteger, nullable=False),
    Column("told", Text, nullable=False),
    Column("series", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What of a task's journals is kept: records beside points and their characters, the characters of points, the names of
their series (JSON), and of what it was said already that more is left out (JSON)."""

reported_predictions = Table(
    "reported_predictions",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("launch_number", Integer, primary_key=True),
    Column("digest", String, primary_key=True),
    sqlite_with_rowid=False,
)
"""Which predictions a launch has reported: a repetition is found by the digest of what makes it one."""
