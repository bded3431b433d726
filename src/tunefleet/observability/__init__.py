"""How processes can be watched: log lines with ids, and spans of one trace a task across processes.

Shared by server, worker and agent. Knows formats and where they go; not what a task or a route is. OpenTelemetry is
imported only where an endpoint is set.
"""
