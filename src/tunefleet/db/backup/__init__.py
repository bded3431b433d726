"""Backups of a database, whatever it is."""
