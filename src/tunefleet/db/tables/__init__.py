"""All tables; they are parts of one schema as soon as one of them is used."""

from __future__ import annotations

from tunefleet.db.tables import campaigns, core, federation, fleet, operations

__all__ = ["campaigns", "core", "federation", "fleet", "operations"]
