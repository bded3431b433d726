"""The store of the services' tests."""

from __future__ import annotations

from tests.unit.orchestrator.conftest import fresh_data, lab

__all__ = ["fresh_data", "lab"]
