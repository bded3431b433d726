"""Alembic's folder; part of the package, so that a server can migrate its own database."""
