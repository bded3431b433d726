"""A real server with something of everything in it, as the tests of isolation make it."""

from __future__ import annotations

from tests.integration.api.conftest import admin, as_role, start
from tests.integration.api.test_isolation import first, made, running
from tests.integration.api.test_projects import member

__all__ = ["admin", "as_role", "first", "made", "member", "running", "start"]
