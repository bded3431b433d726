"""The typed HTTP client of SDK, CLI, worker and agent: synchronous, asynchronous, with resumable transfers.

Calls are plain values (`routes`), operations of several calls are generators (`flows`, `transfer`), and two small
drivers (`transport`) run both. Knows neither what a task does nor how the server stores anything.
"""

from __future__ import annotations

from tunefleet.client.api import AsyncClient, Client
from tunefleet.client.resources import AsyncRun, Run

__all__ = ["AsyncClient", "AsyncRun", "Client", "Run"]
