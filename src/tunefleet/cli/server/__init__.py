"""Commands that look after a server: keys, projects, database, stored files, `doctor`, `debug-dump`."""
