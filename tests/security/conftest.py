"""A real server on a free port, in a thread of the test process; and one that meets its workers in a Redis."""

from __future__ import annotations

from tests.integration.redis.conftest import site
from tests.integration.server.conftest import admin, as_role, running, start

__all__ = ["admin", "as_role", "running", "site", "start"]
