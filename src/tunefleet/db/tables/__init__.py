"""All tables; importing one of the modules imports the complete schema."""

from __future__ import annotations

from tunefleet.db.tables import campaigns, core, federation, fleet, operations, sweeps

__all__ = ["campaigns", "core", "federation", "fleet", "operations", "sweeps"]
