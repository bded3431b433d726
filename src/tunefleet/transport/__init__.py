"""Transports between workers and server: interface, HTTP long poll, and Redis streams (keys: `redis.keys`).

A transport only carries messages of `schemas.worker_link`; the server's database is the source of truth. Transports do
not know what an attempt is for.
"""
