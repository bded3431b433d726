"""Several servers on one database: who leads, who is there, and which files belong to which database."""
