"""The typed HTTP client that SDK, CLI, worker and agent share: synchronous, asynchronous, and transfer with resume.

Calls are plain values (`routes`), what takes several of them is a generator (`flows`, `transfer`), and two small
drivers (`transport`) run both. It refuses to know what a task does, and how the server stores anything.
"""

from __future__ import annotations

from tunefleet.client.api import AsyncClient, Client
from tunefleet.client.resources import AsyncRun, Run

__all__ = ["AsyncClient", "AsyncRun", "Client", "Run"]
