"""`tunefleet run` and `tunefleet control`: training runs on this machine, without a server."""
