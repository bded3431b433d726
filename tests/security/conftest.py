"""A real server in a thread of the test process, one that meets its workers in a Redis, and services alone."""

from __future__ import annotations

from tests.integration.api.conftest import admin, as_role, running, start
from tests.integration.redis.conftest import site
from tests.unit.orchestrator.conftest import fresh_data, lab

__all__ = ["admin", "as_role", "fresh_data", "lab", "running", "site", "start"]
