"""Opening, migrating, writing and reading a database."""
