"""How a database is opened, migrated, written and read."""
