"""Steps whose act may be repeated as it is."""

from __future__ import annotations

from tunefleet.campaign.contract import Later, Outcome, StepContext


class Repeatable:
    """A step that need not ask what an earlier try has done.

    What it submits has a key of the cycle's, what it puts somewhere is the same each time, or it changes nothing.
    """

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return nothing: the step acts again."""
        del context, intent
        return None
