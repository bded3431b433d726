"""From the document's `TrainingConfig` to a task's spec, in both of its spellings.

Every key is used, warned about, or refused by name; none is dropped in silence. Pure: touches no disk and no network.
"""

from __future__ import annotations

from tunefleet.agent.translate.request import Defaults, Translation, translate

__all__ = ["Defaults", "Translation", "translate"]
