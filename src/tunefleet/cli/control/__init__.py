"""`tunefleet run` and `tunefleet control`: trainings of this machine that no server started."""
