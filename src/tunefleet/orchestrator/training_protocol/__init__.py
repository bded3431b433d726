"""The backend of training agents: their reports, their polls, and what people ask of jobs in that protocol.

A job is a task. One that was registered rather than submitted is held by a worker that is none (`external:<owner>`): it
is never placed, never lost, and what it reports lies in the same tables as every other task's. Knows no HTTP.
"""
