"""Alembic's folder; shipped with the package, so that a server upgrades its own database."""
