"""`tunefleet campaign`: its commands, its configuration file and its screens."""
