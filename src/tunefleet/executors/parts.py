"""Which part of a list a task works on whose whole was spread over workers (`spec.shard`)."""

from __future__ import annotations

from tunefleet.spec.tasks.parts import part_of

__all__ = ["part_of"]
