"""Observability of a server: Prometheus metrics, and OpenTelemetry spans of tasks.

Counts commits, requests and exchanges as they happen, and queries the database through indexes only when metrics are
scraped. Has no influence on the server's behavior.
"""
