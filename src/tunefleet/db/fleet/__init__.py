"""Rows of workers, servers and clusters."""
