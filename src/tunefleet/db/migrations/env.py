"""Alembic's entry point: runs migrations on the connection from `db.engine.migrate`."""

from __future__ import annotations

from alembic import context

from tunefleet.db.tables.core import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False)
context.run_migrations()
