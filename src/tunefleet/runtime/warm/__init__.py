"""Processes that are kept ready for the next job."""
