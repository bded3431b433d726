"""Logging with ids, and one trace per task across processes.

Shared by server, worker and agent. Knows formats and destinations, not tasks or routes. OpenTelemetry is imported only
if an endpoint is set.
"""
