"""Rows of federations, rounds, updates and versions."""
