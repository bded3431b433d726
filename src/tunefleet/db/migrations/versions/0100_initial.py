"""All tables of the first release, and the default project."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

from tunefleet.db.migrations.initial import record_tables, task_tables, training_tables

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for tables in (task_tables, record_tables, training_tables):
        tables.create()
    projects = sa.table("projects", *(sa.column(name) for name in ("name", "weight", "created_by", "created_at")))
    first = {"name": "default", "weight": 1.0, "created_by": "tunefleet", "created_at": time.time()}
    op.bulk_insert(projects, [first])
