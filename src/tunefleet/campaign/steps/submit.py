"""`submit`: place the order at the provider, the step that costs money."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from tunefleet.campaign import base_model_check, object_store, paid_training_checks
from tunefleet.campaign.contract import Base, Later, Material, Order, Outcome, StepContext
from tunefleet.campaign.order_cancellation import cancel_earlier, cost_of_task
from tunefleet.campaign.service.cycle_state import ModelVersion
from tunefleet.lifecycle.cycle import StepName


class SubmitStep:
    """Places the order under our own key, after checking whether it was already placed."""

    name = StepName.SUBMIT

    async def plan(self, context: StepContext) -> Outcome:
        """Plan which model is trained: the promoted one, or the campaign's base."""
        base = base_of(context, await context.repository.promoted(context.state))
        await paid_training_checks.check_base(context, base)
        return {
            "key": context.state.order_key,
            "provider": context.provider.name,
            "base": asdict(base),
            "at": context.clock.wall(),
        }

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Look up the order at the provider; None if it certainly has none."""
        await context.log(f"looking up the order {intent['key']} at {context.provider.name}")
        ticket = await context.provider.find(order_of(context, intent))
        if ticket is None:
            return None
        await context.log(f"the order {intent['key']} was already placed: {ticket}")
        return await self._placed(context, intent, ticket)

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Place the order if the budget allows it, after cancelling the one that it replaces."""
        await cancel_earlier(context)
        (await context.repository.budget(context.state)).check(context.spec)
        signed = context.clock.wall()
        ticket = await context.provider.submit(await _with_links(context, order_of(context, intent)))
        await context.log(f"the order {intent['key']} is placed at {context.provider.name}: {ticket}")
        placed = await self._placed(context, intent, ticket)
        return (
            {**placed, "links_until": signed + object_store.LINK_S} if context.provider.fetches_from_store else placed
        )

    @staticmethod
    async def _placed(context: StepContext, intent: Outcome, ticket: str) -> Outcome:
        entry = cost_of_task(context.spec.budget, intent["key"])
        await context.repository.spend(context.state, entry.what, entry.amount, entry.key)
        return {**intent, "ticket": ticket, "placed_at": context.clock.wall()}


def base_of(context: StepContext, promoted: ModelVersion | None) -> Base:
    """Return the model that a cycle starts from."""
    if promoted is None:
        return original(context)
    where = promoted.location
    url, digest = where.get("url"), where.get("digest")
    hub = url.removeprefix("hf://") if isinstance(url, str) and url.startswith("hf://") else None
    revision = where.get("revision")
    repo = f"{promoted.name}-v{promoted.version}" if digest is not None or hub is None else hub
    lineage = promoted.lineage
    return Base(
        repo=repo,
        task_id=where.get("task_id"),
        version=promoted.version,
        digest=digest,
        url=url,
        revision=revision,
        foreign="taken" in lineage.get("merge", {}) or bool(lineage.get("base", {}).get("foreign")),
    )


def original(context: StepContext) -> Base:
    """Return the campaign's own base, for steps after `data`."""
    return base_model_check.base_in(context.spec, context.outcome(StepName.DATA))


def chosen_base(context: StepContext) -> Base:
    """Return the base model of this cycle's order."""
    fields: dict[str, Any] = dict(context.outcome(StepName.SUBMIT)["base"])
    return Base(**fields)


def order_of(context: StepContext, intent: Outcome) -> Order:
    """Return the order of an intent, without links: they are signed when it is placed."""
    state, spec = context.state, context.spec
    chunk: dict[str, Any] = dict(context.outcome(StepName.DATA)["chunk"])
    stored = context.provider.fetches_from_store
    object_key = object_store.named(spec, intent["key"], chunk["digest"]).main if stored else None
    return Order(
        key=intent["key"],
        name=f"{state.name}-{state.number}",
        base=Base(**intent["base"]),
        data=Material(**chunk, object_key=object_key),
        hours=spec.hours_to_complete,
        task_type=spec.task_type,
        spec=spec,
        since=intent["at"],
    )


async def _with_links(context: StepContext, order: Order) -> Order:
    # Links are not part of the stored intent: a cycle may wait for its budget for longer than they are valid. An order
    # that replaces another has its own files.
    if not context.provider.fetches_from_store:
        return order
    async with object_store.opened(context) as shelf:
        links = await shelf.links(await shelf.ensure(order.key))
    return replace(order, data=replace(order.data, url=links.get(object_store.DATASET)), uploads=links)
