"""Several servers on one database: leader election, peers, and the pairing of database and file store."""
