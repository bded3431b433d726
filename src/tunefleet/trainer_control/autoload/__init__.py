"""Attaches control and reporting to a script that does not use Tunefleet."""
