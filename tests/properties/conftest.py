"""A data folder that every machine begins with, and a server's core on a copy of it."""

from __future__ import annotations

from tests.unit.orchestrator.conftest import fresh_data, lab

__all__ = ["fresh_data", "lab"]
