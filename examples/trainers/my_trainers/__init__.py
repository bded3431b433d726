"""A trainer of one's own for Tunefleet."""
