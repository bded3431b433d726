"""Rows of tasks and their outputs."""
