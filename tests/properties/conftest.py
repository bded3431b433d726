"""A data folder that every machine begins with."""

from __future__ import annotations

from tests.unit.services.conftest import fresh_data

__all__ = ["fresh_data"]
