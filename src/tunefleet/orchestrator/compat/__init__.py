"""Compatibility APIs for existing clients: the worker guide and the v1 task API."""
