"""`tunefleet federation`: commands and views."""
