"""`upload`: the chunk to where the provider fetches it; nothing for one that takes rows from our server."""

from __future__ import annotations

from tunefleet.campaign import object_store
from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.lifecycle.cycle import StepName


class UploadStep(Repeatable):
    """Puts the chunk into an object store, under the name of the order, and removes what earlier orders have left."""

    name = StepName.UPLOAD

    async def plan(self, context: StepContext) -> Outcome:
        """Say whether anything is uploaded."""
        return {"needed": context.provider.fetches_from_store}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Upload the chunk."""
        if not intent["needed"]:
            return {}
        key = context.state.order_key
        async with object_store.opened(context) as shelf:
            removed = await shelf.sweep(keep=key)
            if removed:
                await context.log(f"{removed} file(s) of earlier orders are removed from the store")
            return {"objects": dict((await shelf.ensure(key)).objects)}
