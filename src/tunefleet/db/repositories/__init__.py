"""Rows of tasks and of what they leave."""
