"""Translates the protocol's `TrainingConfig`, in both of its spellings, to a task spec.

Every key is used, warned about, or rejected; none is dropped silently. Pure: no disk or network access.
"""

from __future__ import annotations

from tunefleet.agent.translate.request import Defaults, Translation, translate

__all__ = ["Defaults", "Translation", "translate"]
