"""Checks and generators of this repository; run by make, never installed."""
