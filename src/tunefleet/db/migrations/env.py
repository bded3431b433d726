"""Alembic's entry: the migrations run on the connection that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from tunefleet.db.tables.core import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False)
context.run_migrations()
