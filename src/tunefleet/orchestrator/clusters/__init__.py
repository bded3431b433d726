"""Cluster nodes for tasks that name an engine: requested when their turn comes, released when they are done.

A cluster job only allocates nodes. On them run workers that accept a single task; everything else is the same as on
other workers.
"""
