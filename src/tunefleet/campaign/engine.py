"""Runs one campaign, step by step, for as long as there is something to do and the lease holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from tunefleet.campaign import object_store, providers
from tunefleet.campaign.contract import (
    CycleFailed,
    Later,
    MakeProvider,
    Misconfigured,
    NeedsYou,
    OrderFailed,
    Provider,
    Step,
    StepContext,
)
from tunefleet.campaign.order_cancellation import cancel, cancel_earlier
from tunefleet.campaign.scratch_folder import said_full
from tunefleet.campaign.steps import all_steps
from tunefleet.client import AsyncClient
from tunefleet.errors import ForbiddenError, InputError, SpecError, TunefleetError
from tunefleet.integrations.trackers import catalog
from tunefleet.lifecycle.cycle import StepName, needs_you
from tunefleet.orchestrator.campaigns.cycle_state import BudgetError, CycleState, LeaseLost
from tunefleet.orchestrator.campaigns.engine_repository import RENEW_S, Book, Level
from tunefleet.orchestrator.context import Clock
from tunefleet.settings import CampaignSettings, TrackingSettings, load

log = logging.getLogger(__name__)

# What a further try of the same step would meet again.
_HOPELESS: Final = (CycleFailed, InputError, SpecError, ForbiddenError)
# Steps at which a cycle may be given up. Behind them there are models that were paid for: what cannot be evaluated,
# chosen, merged or published is left to a person, and its chunk is not ordered again.
_BEFORE_MODELS: Final = frozenset({StepName.DATA, StepName.UPLOAD, StepName.SUBMIT, StepName.WAIT})

# Token of a campaign → a client of our own server.
MakeClient = Callable[[str], AsyncClient]
FindProvider = Callable[[str], MakeProvider]


class _NoProvider(TunefleetError):
    """What trains cannot be had."""


class Engine:
    """Runs campaigns; each call works on one of them, and none waits for another."""

    def __init__(
        self,
        book: Book,
        settings: CampaignSettings,
        make_client: MakeClient,
        *,
        clock: Clock | None = None,
        find_provider: FindProvider = providers.find,
        steps: Mapping[StepName, Step] | None = None,
        renew_s: float = RENEW_S,
    ) -> None:
        self._book = book
        self._settings = settings
        self._make_client = make_client
        self._clock = clock or Clock()
        self._find_provider = find_provider
        self._steps = steps or all_steps()
        self._renew_s = renew_s
        self._told: set[str] = set()

    async def advance(self, campaign_id: str) -> bool:
        """Take a campaign, and run its steps until one waits, fails or ends the cycle."""
        state = await self._book.take(campaign_id, f"engine-{secrets.token_hex(8)}")
        if state is None:
            return False
        try:
            async with self._renewing(state), self._equipped(state) as (client, provider):
                while state is not None:
                    state = await self._step(state, client, provider)
        except LeaseLost as lost:
            log.info("[%s] %s", campaign_id, lost.message)
        except _NoProvider as error:
            assert state is not None, "no step was begun"
            why = str(error) if state.provider is None else needs_you(state.name, "retry", str(error))
            await self._book.failed(state, why, fatal=False)
        except asyncio.CancelledError:
            # The server stops, or somebody paused the campaign; whoever goes on need not wait for the lease.
            if state is not None:
                await self._book.release(state)
            raise
        return True

    async def end_order(self, state: CycleState) -> bool:
        """Cancel the task of an abandoned cycle at its provider, if one may still run, and remove its rows."""
        try:
            await self._end_order(state)
        except TunefleetError as error:
            await self._book.not_cancelled(state, str(error))
            raise
        except Exception as error:
            await self._book.not_cancelled(state, f"The server has a fault ({type(error).__name__}).")
            raise
        await self._book.cancelled(state)
        return True

    async def _end_order(self, state: CycleState) -> None:
        async with self._equipped(state) as (client, provider):
            context = self._context(state, client, provider)
            order = state.outcomes.get(StepName.SUBMIT)
            if order is None and state.intent is not None and state.step is StepName.SUBMIT:
                found = await self._steps[StepName.SUBMIT].reconcile(context, state.intent)
                order = found if isinstance(found, Mapping) else None
            await cancel_earlier(context)
            if order is not None:
                await cancel(context, {"key": state.order_key, "ticket": order["ticket"], "at": order["at"]})
            await object_store.clear(context, last=True)

    async def _step(self, state: CycleState, client: AsyncClient, provider: Provider) -> CycleState | None:
        """Do the next step; null if the campaign was let go of."""
        book = self._book
        try:
            state, outcome = await self._act(state, client, provider)
        except LeaseLost:
            raise
        except BudgetError as error:
            await book.over_budget(state, error)
            return None
        except TunefleetError as error:
            hopeless = OrderFailed if state.step is StepName.WAIT else _HOPELESS
            fatal = state.step in _BEFORE_MODELS and isinstance(error, hopeless)
            if fatal and StepName.DATA in state.outcomes:
                await object_store.clear(self._context(state, client, provider))
            why = needs_you(state.name, error.verb, str(error)) if isinstance(error, NeedsYou) else str(error)
            await book.failed(state, why, fatal=fatal, hold=isinstance(error, Misconfigured))
            return None
        except Exception as error:
            full = said_full(error, book.folder) if isinstance(error, OSError) else None
            if full is not None:
                await book.failed(state, str(full), fatal=False)
                return None
            log.exception("[%s] %s has a fault.", state.name, state.step.value)
            await book.failed(state, f"The server has a fault ({type(error).__name__}).", fatal=False)
            return None
        if isinstance(outcome, Later):
            await book.later(state, outcome.until, outcome.why)
            return None
        return await book.done(state, outcome)

    async def _act(
        self, state: CycleState, client: AsyncClient, provider: Provider
    ) -> tuple[CycleState, Mapping[str, object] | Later]:
        step = self._steps[state.step]
        known = state.intent
        if known is None:
            intent = await step.plan(self._context(state, client, provider))
            state = await self._book.intend(state, intent)
            context = self._context(state, client, provider)
            return state, await step.act(context, intent)
        context = self._context(state, client, provider)
        try:
            found = await step.reconcile(context, known)
        except _HOPELESS as error:
            # Whoever cannot say what was done has not said that nothing was: an order may stand.
            raise NeedsYou(error.message, hint=error.hint) from error
        return state, await step.act(context, known) if found is None else found

    def _context(self, state: CycleState, client: AsyncClient, provider: Provider) -> StepContext:
        async def say(text: str) -> None:
            await self._say(state, "info", text)

        return StepContext(state, self._book, client, provider, self._settings, self._clock, say)

    async def _say(self, state: CycleState, level: Level, text: str) -> None:
        """Write a line that has the campaign's name, here and in the campaign's own log."""
        number = logging.getLevelNamesMapping()[level.upper()]
        log.log(number, "[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, text)
        await self._book.log(state, level, text)

    async def _tell_trackers(self, state: CycleState) -> None:
        settings = load(TrackingSettings)
        choice = catalog.chosen(state.spec, settings)
        await self._say(state, "info", f"it is tracked {catalog.sentence(choice)}")
        for fault in await asyncio.to_thread(catalog.faults, choice, settings):
            # It is told again and again, until that is mended; the campaign goes on.
            await self._say(state, "warning", str(fault))

    @contextlib.asynccontextmanager
    async def _equipped(self, state: CycleState) -> AsyncIterator[tuple[AsyncClient, Provider]]:
        if state.provider is None:
            name, why = providers.chosen(state.spec, self._settings)
        else:
            # Whatever is set by now: nobody else can tell what has become of the order.
            name, why = state.provider, "the order is there"
        if state.campaign_id not in self._told:
            self._told.add(state.campaign_id)
            await self._say(state, "info", f"the provider is {name}: {why}")
            await self._tell_trackers(state)
        client = self._make_client(await self._book.token(state.campaign_id))
        async with client:
            try:
                make = await asyncio.to_thread(self._find_provider, name)  # it may import a package
                provider = make(self._settings, client)
            except TunefleetError as error:
                if state.provider is None:
                    raise _NoProvider(str(error)) from error
                raise _NoProvider(
                    f"The order {state.order_key} was placed at {name}, or may have been: {error.message}",
                    hint=f"Give {name} back what it needs: nobody else is asked for that order.",
                ) from error
            try:
                yield client, provider
            finally:
                await provider.close()

    @contextlib.asynccontextmanager
    async def _renewing(self, state: CycleState) -> AsyncIterator[None]:
        """Renew the lease while the block runs; cancel it if somebody else has the campaign, or it was paused."""
        worker = asyncio.current_task()
        assert worker is not None
        lost = False

        async def renew() -> None:
            nonlocal lost
            while not lost:
                try:
                    lost = not await self._book.renew(state)
                except TunefleetError as error:
                    # Whoever has it by now is told by the next renewal that comes to its end.
                    log.warning("[%s] its lease could not be renewed: %s", state.name, error)
                if not lost:
                    await asyncio.sleep(self._renew_s)
            worker.cancel()

        renewer = asyncio.create_task(renew(), name=f"lease of {state.name}")
        try:
            yield
        except asyncio.CancelledError:
            if lost:
                worker.uncancel()
                raise LeaseLost(f"{state.name} was paused or stopped, or is somebody else's.") from None
            raise
        finally:
            renewer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewer
