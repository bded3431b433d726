"""`tunefleet campaign`: commands, configuration file and views."""
