"""Compatibility APIs for existing clients: the worker guide, results, and the v1 task API."""
