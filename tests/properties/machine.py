"""The machine that drives the queue: users, machines, server and time, each rule one thing that somebody does."""

from __future__ import annotations

from tests.properties.fleet import Fleet
from tests.properties.users import Users


class QueueMachine(Users, Fleet):
    """All of them at once."""
