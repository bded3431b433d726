"""Server administration: keys, projects, database, stored files, `doctor`, `debug-dump`."""
