"""A federation in the upload guide's words: a job, its workers, and how far it has come."""

from __future__ import annotations

from typing import Final, Literal

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_chunks, federation_updates, federation_versions, federations, rounds
from tunefleet.db.federations.federation_updates import COUNTED
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation.participants import Who
from tunefleet.orchestrator.federation.status import find, sees, spec_of
from tunefleet.orchestrator.views import maybe_moment, moment
from tunefleet.schemas.federated import JobProgress, JobReply, JobState, JobStats, JobWorker

# A worker that was heard of since then counts as active.
ACTIVE_S: Final = 900.0
_LISTED: Final = 1000

_Standing = Literal["assigned", "training", "syncing", "completed", "failed"]


async def job(core: Core, who: Who, reference: str) -> JobReply:
    """Return a federation as a job with its workers."""

    def operation(connection: Connection) -> JobReply:
        row = find(connection, who, reference)
        return JobReply(job=job_state(connection, row, who), workers=_workers(connection, row, who))

    return await core.read(operation)


async def progress(core: Core, who: Who, reference: str) -> JobProgress:
    """Return how far a federation has come; raises what `job` raises."""
    now = core.clock.wall()

    def operation(connection: Connection) -> JobProgress:
        row = find(connection, who, reference)
        chunks = federation_chunks.counts(connection, row.seq)
        seen = [each.seen_at for each in federations.members(connection, row.seq)]
        stats = JobStats(
            active_workers=sum(now - at <= ACTIVE_S for at in seen),
            total_gradient_updates=federation_updates.count(connection, row.seq),
            completed_chunks=chunks.get(federation_chunks.DONE, 0),
            total_chunks=sum(chunks.values()),
        )
        return JobProgress(job=job_state(connection, row, who), workers=_workers(connection, row, who), stats=stats)

    return await core.read(operation)


def job_state(connection: Connection, row: FederationRow, who: Who) -> JobState:
    """Show a federation as a job; its step is that of the workers whose updates the asker may see."""
    spec = spec_of(row)
    versions = federation_versions.page(connection, row.seq, limit=_LISTED)
    losses = [orjson.loads(each.summary)["losses"]["after"] for each in versions]
    known = [loss for loss in losses if loss is not None]
    members = federations.members(connection, row.seq)
    steps = [each.step for each in members if each.step is not None and sees(who, row, each.worker)]
    contract = {} if row.contract is None else orjson.loads(row.contract)
    return JobState(
        id=row.seq,
        job_id=row.id,
        name=row.name,
        model_type=spec.base_model or contract.get("base_model"),
        status=FederationStatus(row.status).value,
        current_step=max(steps, default=0),
        current_round=row.round,
        version=row.version,
        global_loss=losses[0] if losses else None,
        best_loss=min(known, default=None),
        progress_percent=_percent(connection, row, spec.rounds),
        fed_config={
            "aggregation_algorithm": spec.strategy.name,
            "sync_interval": spec.sync_every_steps,
            "min_workers": spec.min_workers,
            "max_workers": spec.max_workers,
        },
        created_at=moment(row.created_at),
        started_at=maybe_moment(row.started_at),
        completed_at=maybe_moment(row.finished_at),
    )


def _percent(connection: Connection, row: FederationRow, wanted: int | None) -> float:
    if row.status == FederationStatus.COMPLETED:
        return 100.0
    if wanted is None:
        return 0.0
    return round(100.0 * rounds.count(connection, row.seq, RoundStatus.PUBLISHED) / wanted, 1)


def _workers(connection: Connection, row: FederationRow, who: Who) -> tuple[JobWorker, ...]:
    held = federation_chunks.held(connection, row.seq)
    here = {each.worker for each in federation_updates.of_round(connection, row.seq, row.round, [COUNTED])}
    here |= {each.worker for each in federation_updates.waiting(connection, row.seq)}
    return tuple(
        JobWorker(
            id=each.worker,
            worker_id=each.worker,
            assigned_chunk=held.get(each.worker),
            status=_standing(row, each, here),
            **({"current_step": each.step or 0, "local_loss": each.loss} if sees(who, row, each.worker) else {}),
        )
        for each in federations.members(connection, row.seq)
    )


def _standing(row: FederationRow, member: MemberRow, here: set[str]) -> _Standing:
    if FederationStatus(row.status).final:
        return "completed"
    if member.worker in here:
        return "syncing"
    return "training" if member.updates else "assigned"
