"""Telemetry: journals, metric points, logs, events and live feeds."""
