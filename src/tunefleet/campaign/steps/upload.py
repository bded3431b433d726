"""`upload`: the chunk to where the provider fetches it; nothing for one that takes rows from our server."""

from __future__ import annotations

from tunefleet.campaign.contract import CycleFailed, Later, Outcome, StepContext
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.lifecycle.cycle import StepName


class UploadStep(Repeatable):
    """Puts the chunk into an object store."""

    name = StepName.UPLOAD

    async def plan(self, context: StepContext) -> Outcome:
        """Say whether anything is uploaded."""
        return {"needed": context.provider.fetches_from_store}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Upload the chunk."""
        if not intent["needed"]:
            return {}
        raise CycleFailed(
            f"The provider {context.provider.name} takes its rows from an object store, and none is set up.",
            hint="Set S3_COMPATIBLE_ENDPOINT, its keys and S3_BUCKET_NAME, or write provider: local.",
        )
