"""A custom trainer for Tunefleet."""
