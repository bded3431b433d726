"""Runs one campaign step by step, while there is work and the lease is held."""

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
from tunefleet.campaign.scratch_folder import disk_full_error
from tunefleet.campaign.service.cycle_state import BudgetError, CycleState, LeaseLost
from tunefleet.campaign.service.engine_repository import RENEW_S, CampaignRepository, Level
from tunefleet.campaign.steps import all_steps
from tunefleet.client import AsyncClient
from tunefleet.errors import ForbiddenError, InputError, SpecError, TunefleetError
from tunefleet.integrations.trackers import catalog
from tunefleet.lifecycle.cycle import StepName, needs_you
from tunefleet.orchestrator.context import Clock
from tunefleet.settings import CampaignSettings, TrackingSettings, load

log = logging.getLogger(__name__)

# Errors that a retry of the same step would hit again.
_PERMANENT: Final = (CycleFailed, InputError, SpecError, ForbiddenError)
# Steps at which a cycle may become a dead letter. Later steps have models that were paid for: a failure there is left
# to a user, and the chunk is not ordered again.
_BEFORE_MODELS: Final = frozenset({StepName.DATA, StepName.UPLOAD, StepName.SUBMIT, StepName.WAIT})

# Campaign token → client of our own server.
MakeClient = Callable[[str], AsyncClient]
FindProvider = Callable[[str], MakeProvider]


class _NoProvider(TunefleetError):
    """The campaign's provider is not available."""


class Engine:
    """Runs campaigns; each call works on one of them, independently of others."""

    def __init__(
        self,
        repository: CampaignRepository,
        settings: CampaignSettings,
        make_client: MakeClient,
        *,
        clock: Clock | None = None,
        find_provider: FindProvider = providers.find,
        steps: Mapping[StepName, Step] | None = None,
        renew_s: float = RENEW_S,
    ) -> None:
        self._repository = repository
        self._settings = settings
        self._make_client = make_client
        self._clock = clock or Clock()
        self._find_provider = find_provider
        self._steps = steps or all_steps()
        self._renew_s = renew_s
        self._announced: set[str] = set()

    async def advance(self, campaign_id: str) -> bool:
        """Claim a campaign, and run its steps until one waits, fails or ends the cycle."""
        state = await self._repository.take(campaign_id, f"engine-{secrets.token_hex(8)}")
        if state is None:
            return False
        try:
            async with self._renewing(state), self._equipped(state) as (client, provider):
                while state is not None:
                    state = await self._step(state, client, provider)
        except LeaseLost as lost:
            log.info("[%s] %s", campaign_id, lost.message)
        except _NoProvider as error:
            assert state is not None, "raised before the first step"
            why = str(error) if state.provider is None else needs_you(state.name, "retry", str(error))
            await self._repository.failed(state, why, fatal=False)
        except asyncio.CancelledError:
            # Shutdown or pause: release the campaign, so that the next holder need not wait for the lease to expire.
            if state is not None:
                await self._repository.release(state)
            raise
        return True

    async def end_order(self, state: CycleState) -> bool:
        """Cancel the task of an abandoned cycle at its provider if it may still be running, and remove its rows."""
        try:
            await self._end_order(state)
        except TunefleetError as error:
            await self._repository.not_cancelled(state, str(error))
            raise
        except Exception as error:
            await self._repository.not_cancelled(state, f"Internal server error ({type(error).__name__}).")
            raise
        await self._repository.cancelled(state)
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
        """Run the next step; None if the campaign was released."""
        repository = self._repository
        try:
            state, outcome = await self._act(state, client, provider)
        except LeaseLost:
            raise
        except BudgetError as error:
            await repository.over_budget(state, error)
            return None
        except TunefleetError as error:
            permanent = OrderFailed if state.step is StepName.WAIT else _PERMANENT
            fatal = state.step in _BEFORE_MODELS and isinstance(error, permanent)
            if fatal and StepName.DATA in state.outcomes:
                await object_store.clear(self._context(state, client, provider))
            why = needs_you(state.name, error.verb, str(error)) if isinstance(error, NeedsYou) else str(error)
            await repository.failed(state, why, fatal=fatal, hold=isinstance(error, Misconfigured))
            return None
        except Exception as error:
            full = disk_full_error(error, repository.folder) if isinstance(error, OSError) else None
            if full is not None:
                await repository.failed(state, str(full), fatal=False)
                return None
            log.exception("[%s] step %s crashed.", state.name, state.step.value)
            await repository.failed(state, f"Internal server error ({type(error).__name__}).", fatal=False)
            return None
        if isinstance(outcome, Later):
            await repository.later(state, outcome.until, outcome.why)
            return None
        return await repository.done(state, outcome)

    async def _act(
        self, state: CycleState, client: AsyncClient, provider: Provider
    ) -> tuple[CycleState, Mapping[str, object] | Later]:
        step = self._steps[state.step]
        known = state.intent
        if known is None:
            intent = await step.plan(self._context(state, client, provider))
            state = await self._repository.intend(state, intent)
            context = self._context(state, client, provider)
            return state, await step.act(context, intent)
        context = self._context(state, client, provider)
        try:
            found = await step.reconcile(context, known)
        except _PERMANENT as error:
            # Not fatal here: the check failed, so an earlier attempt may still have placed the order.
            raise NeedsYou(error.message, hint=error.hint) from error
        return state, await step.act(context, known) if found is None else found

    def _context(self, state: CycleState, client: AsyncClient, provider: Provider) -> StepContext:
        async def write(text: str) -> None:
            await self._log(state, "info", text)

        return StepContext(state, self._repository, client, provider, self._settings, self._clock, write)

    async def _log(self, state: CycleState, level: Level, text: str) -> None:
        """Write a line to the server log and to the campaign's own log."""
        number = logging.getLevelNamesMapping()[level.upper()]
        log.log(number, "[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, text)
        await self._repository.log(state, level, text)

    async def _announce_trackers(self, state: CycleState) -> None:
        settings = load(TrackingSettings)
        choice = catalog.chosen(state.spec, settings)
        await self._log(state, "info", f"tracked {catalog.sentence(choice)}")
        for fault in await asyncio.to_thread(catalog.faults, choice, settings):
            # Logged only: deliveries are retried until the settings are fixed, and the campaign continues.
            await self._log(state, "warning", str(fault))

    @contextlib.asynccontextmanager
    async def _equipped(self, state: CycleState) -> AsyncIterator[tuple[AsyncClient, Provider]]:
        if state.provider is None:
            name, why = providers.chosen(state.spec, self._settings)
        else:
            # The provider of the order, regardless of the current settings: only it knows the order's status.
            name, why = state.provider, "it has the order"
        if state.campaign_id not in self._announced:
            self._announced.add(state.campaign_id)
            await self._log(state, "info", f"the provider is {name}: {why}")
            await self._announce_trackers(state)
        client = self._make_client(await self._repository.token(state.campaign_id))
        async with client:
            try:
                make = await asyncio.to_thread(self._find_provider, name)  # may import a package
                provider = make(self._settings, client)
            except TunefleetError as error:
                if state.provider is None:
                    raise _NoProvider(str(error)) from error
                raise _NoProvider(
                    f"The order {state.order_key} was, or may have been, placed at {name}: {error.message}",
                    hint=f"Restore the configuration of {name}: no other provider is used for that order.",
                ) from error
            try:
                yield client, provider
            finally:
                await provider.close()

    @contextlib.asynccontextmanager
    async def _renewing(self, state: CycleState) -> AsyncIterator[None]:
        """Renew the lease while the block runs; cancel the block if the campaign was paused or has another holder."""
        worker = asyncio.current_task()
        assert worker is not None
        lost = False

        async def renew() -> None:
            nonlocal lost
            while not lost:
                try:
                    lost = not await self._repository.renew(state)
                except TunefleetError as error:
                    # Retried: the next renewal that succeeds shows whether the lease is lost.
                    log.warning("[%s] Cannot renew the lease: %s", state.name, error)
                if not lost:
                    await asyncio.sleep(self._renew_s)
            worker.cancel()

        renewer = asyncio.create_task(renew(), name=f"lease of {state.name}")
        try:
            yield
        except asyncio.CancelledError:
            if lost:
                worker.uncancel()
                raise LeaseLost(f"{state.name} was paused or stopped, or has another holder.") from None
            raise
        finally:
            renewer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewer
