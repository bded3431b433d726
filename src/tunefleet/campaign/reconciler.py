"""Reconciler of all campaigns of a server: one asyncio task for each campaign that is due.

A campaign that fails, waits or hangs blocks no other: each has its own task, lease and client.

The tracker run of a cycle keeps the keys of the Gradients scheduler exactly, so that existing charts continue; ours
are added.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tunefleet.campaign import scratch_folder
from tunefleet.campaign.engine import Engine
from tunefleet.campaign.service.engine_repository import TOPIC, CampaignRepository
from tunefleet.campaign.service.tracking_outbox import PendingDelivery, TrackingOutbox
from tunefleet.client import AsyncClient
from tunefleet.errors import TunefleetError
from tunefleet.integrations.trackers import catalog, delivery
from tunefleet.integrations.trackers.contract import Plain, TrackedRun
from tunefleet.lifecycle.cycle import StepName
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.context import ServerContext
from tunefleet.settings import CampaignSettings, TrackingSettings, load

log = logging.getLogger(__name__)
# Due campaigns are looked for whenever something changes, and this often otherwise.
LOOK_S: Final = 30.0
FAULT_PAUSE_S: Final = 5.0
# Pause after a campaign that was due but could not be claimed, so that the loop does not spin.
IDLE_PAUSE_S: Final = 1.0


class CampaignReconciler:
    """Runs the due campaigns of a server."""

    def __init__(self, core: ServerContext, url: str, trust: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._repository = CampaignRepository(core)
        self._engine = Engine(
            self._repository,
            load(CampaignSettings),
            lambda token: AsyncClient(url, token, trust=trust),
            clock=core.clock,
        )
        self._reporter = Reporter(TrackingOutbox(core), load(TrackingSettings), core.settings.data_dir / "tracking")
        self._work: dict[str, asyncio.Task[None]] = {}
        self._begun = False
        self._seen = core.clock.wall()

    async def run_once(self) -> None:
        """Start due campaigns, then wait until another one may be due."""
        if not self._begun:
            await scratch_folder.clear(self._repository.folder)
            await self._repository.begin()
            self._begun = True
        signals = self._core.signals
        seen = signals.version(TOPIC)
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Start a task for every due campaign that has none.

        Returns:
            Seconds until the next campaign is due.
        """
        now = self._core.clock.wall()
        await self._repository.look_at_clock(self._seen)
        self._seen = now
        due = await self._repository.due()
        for campaign_id, at in due.items():
            if at <= now:
                self._start(campaign_id, self._engine.advance(campaign_id))
        for state in await self._repository.to_cancel():
            self._start(f"{state.campaign_id}/{state.number}", self._engine.end_order(state))
        for untold in await self._reporter.due():
            self._start(untold.key, self._reporter.tell(untold))
        untold_at = await self._reporter.next_at()
        later = [*due.values(), *([] if untold_at is None else [untold_at])]
        return min([LOOK_S, *(at - now for at in later if at > now)])

    async def close(self) -> None:
        """Stop, and release unfinished campaigns to other servers."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    def _start(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        if key in self._work:
            work.close()
            return
        self._work[key] = asyncio.create_task(self._run(key, work), name=f"campaign {key}")

    async def _run(self, key: str, work: Coroutine[Any, Any, bool]) -> None:
        try:
            if not await work:
                await asyncio.sleep(IDLE_PAUSE_S)
        except TunefleetError as error:
            log.warning("Campaign %s failed; retrying later: %s", key, error)
            await asyncio.sleep(FAULT_PAUSE_S)
        except Exception:
            log.exception("Campaign %s failed unexpectedly; retrying later.", key)
            await asyncio.sleep(FAULT_PAUSE_S)
        finally:
            self._work.pop(key, None)
            self._core.signals.notify(TOPIC)


class Reporter:
    """Delivers the outbox to experiment trackers."""

    def __init__(self, outbox: TrackingOutbox, settings: TrackingSettings, folder: Path) -> None:
        self._outbox = outbox
        self._settings = settings
        self._folder = folder
        # One subprocess per tracker: a slow tracker blocks no other, and many pending cycles do not start many
        # processes.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def due(self) -> list[PendingDelivery]:
        """Return the deliveries that are due now."""
        return await self._outbox.due()

    async def next_at(self) -> float | None:
        """Return the Unix time when the next delivery is due that is not due yet."""
        return await self._outbox.next_at()

    async def tell(self, untold: PendingDelivery) -> bool:
        """Deliver a cycle to its tracker, and record the result."""
        name, spec = untold.tracker, untold.state.spec
        if name not in catalog.chosen(spec, self._settings).names:
            await self._outbox.drop(untold)
            return True
        async with self._locks[name]:
            try:
                location = await delivery.post(name, run_of(untold), self._folder, self._settings)
            except TunefleetError as error:
                log.warning("[%s] cycle %d: %s", untold.state.name, untold.state.number, error)
                await self._outbox.failed(untold, str(error))
                return True
            except Exception as error:
                log.exception("[%s] cycle %d: tracker delivery crashed.", untold.state.name, untold.state.number)
                await self._outbox.failed(untold, f"Internal server error ({type(error).__name__}).")
                return True
        await self._outbox.delivered(untold, location)
        return True


def run_of(untold: PendingDelivery) -> TrackedRun:
    """Return the tracker run of a cycle."""
    state, done = untold.state, untold.state.outcomes
    candidate, ticket = done[StepName.SELECT]["candidate"], str(done[StepName.SUBMIT]["ticket"])
    suffix = f"-{untold.revision}" if untold.revision else ""
    name = f"{str(candidate['ref']).rsplit('/', 1)[-1]}_{ticket}"
    if untold.revision:
        name += "_remerged" if untold.revision == 1 else f"_remerged{untold.revision}"
    return TrackedRun(
        id=f"{state.campaign_id}-{state.number}{suffix}",
        name=scrub(name),
        project=state.spec.wandb_project or state.name,
        group=state.name,
        at=untold.recorded_at,
        step=state.number,
        config=_plain(_config(untold, candidate, ticket)),
        metrics={key: value for key, value in _metrics(untold, candidate) if _is_number(value)},
        summary=_plain(_summary(done)),
    )


def _config(untold: PendingDelivery, candidate: Mapping[str, Any], ticket: str) -> Mapping[str, Any]:
    state, done = untold.state, untold.state.outcomes
    data, order, version = done[StepName.DATA], done[StepName.SUBMIT], done[StepName.RECORD]["version"]
    at = datetime.fromtimestamp(untold.recorded_at, UTC)
    return {
        # The document's.
        "merged_model_repo": _merged(done) or f"{state.name}-v{version}",
        "model_repo": candidate["ref"],
        "previously_finetuned_model_repo": order["base"]["repo"],
        "original_model_repo": state.spec.model_repo,
        "timestamp": f"{at:%Y-%m-%d_%H-%M-%S}",
        "task_id": ticket,
        "winning_miner": candidate["name"],
        "training_number": state.position,
        # Ours.
        "campaign": state.name,
        "campaign_id": state.campaign_id,
        "cycle": state.number,
        "provider": order.get("provider"),
        "chunk": data.get("index"),
        "chunks": data.get("chunks"),
        "epoch": data.get("epoch"),
        "chunk_rows": data["chunk"].get("rows"),
        "chunk_digest": data["chunk"].get("digest"),
        "samples_per_training": state.spec.samples_per_training,
        "hours_to_complete": state.spec.hours_to_complete,
        "random_seed": state.spec.random_seed,
        "gate_metric": ", ".join(each.metric for each in state.spec.gate),
        "test_loss_of": "held-out rows" if candidate.get("test_loss") is None else "provider",
    }


def _merged(done: Mapping[StepName, Mapping[str, Any]]) -> str | None:
    """Return the Hub repository of the merged or published model; another kind of location by its URL."""
    url = done[StepName.PUBLISH].get("url") or done[StepName.MERGE].get("url")
    return None if url is None else str(url).removeprefix("hf://")


def _metrics(untold: PendingDelivery, candidate: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    done = untold.state.outcomes
    held_out, synth = done[StepName.SELECT]["loss"], candidate.get("synth_loss")
    reported = candidate.get("test_loss")
    test = held_out if reported is None else reported
    # The document's.
    yield "test_loss", test
    yield "synth_loss", synth
    if _is_number(test) and _is_number(synth):
        yield "weighted_loss", (test + synth) / 2
    yield "score", candidate.get("score")
    # Ours.
    yield "held_out_loss", held_out
    yield from _measured(done[StepName.EVALUATE], done[StepName.SELECT].get("evaluation") or {})
    for other, gain in (done[StepName.GATE].get("against") or {}).items():
        yield f"gain_over_{other}", gain["value"]
        yield f"gain_over_{other}_low", gain["low"]
        yield f"gain_over_{other}_high", gain["high"]
    # The gains in the first metric are above.
    for decided in (done[StepName.GATE].get("metrics") or [])[1:]:
        for other, gain in decided["against"].items():
            yield f"{decided['metric']}_gain_over_{other}", gain["value"]
            yield f"{decided['metric']}_gain_over_{other}_low", gain["low"]
            yield f"{decided['metric']}_gain_over_{other}_high", gain["high"]
    yield "promoted", int(bool(done[StepName.GATE]["passed"]))
    yield "cost", untold.cost
    yield "provider_seconds", done[StepName.WAIT].get("cost_s")


def _measured(evaluation: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the other metrics of the candidate, and those of the base and of the promoted model."""
    of = {"held_out": candidate, "base": evaluation.get("base"), "promoted_model": evaluation.get("promoted")}
    for model, measured in of.items():
        for metric, found in ((measured or {}).get("metrics") or {}).items():
            if (model, metric) != ("held_out", "loss"):
                yield f"{model}_{metric}", found.get("value")


def _summary(done: Mapping[StepName, Mapping[str, Any]]) -> Mapping[str, Any]:
    recorded = done[StepName.RECORD]
    return {"stage": recorded["stage"], "version": recorded["version"], "reason": done[StepName.GATE]["reason"]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _plain(values: Mapping[str, Any]) -> dict[str, Plain]:
    """Drop None values and redact credentials: a repository may have been given as a signed link."""
    known = {key: value for key, value in values.items() if value is not None}
    return {key: scrub(value) if isinstance(value, str) else value for key, value in known.items()}
