"""`tunefleet federation`: its commands and its screens."""
