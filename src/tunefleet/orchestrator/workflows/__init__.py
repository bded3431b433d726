"""Workflows: submission, dependencies, sharding and merging of results."""
