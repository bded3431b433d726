"""Backups of a database of either kind."""
