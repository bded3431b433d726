"""A federation in the upload guide's schema: a job, its workers and its progress."""

from __future__ import annotations

from typing import Final, Literal

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_chunks, federation_updates, federation_versions, federations, rounds
from tunefleet.db.federations.federation_updates import COUNTED
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import find, may_read_updates, spec_of
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.federated import JobProgress, JobReply, JobState, JobStats, JobWorker

# A worker that has sent something within this time counts as active.
ACTIVE_S: Final = 900.0
_LISTED: Final = 1000

_WorkerStatus = Literal["assigned", "training", "syncing", "completed", "failed"]


async def job(core: ServerContext, caller: FederationCaller, reference: str) -> JobReply:
    """Return a federation as a job with its workers."""

    def operation(connection: Connection) -> JobReply:
        row = find(connection, caller, reference)
        return JobReply(job=_job_state(connection, row, caller), workers=_workers(connection, row, caller))

    return await core.read(operation)


async def progress(core: ServerContext, caller: FederationCaller, reference: str) -> JobProgress:
    """Return the progress of a federation; raises what `job` raises."""
    now = core.clock.wall()

    def operation(connection: Connection) -> JobProgress:
        row = find(connection, caller, reference)
        chunks = federation_chunks.counts(connection, row.seq)
        seen = [each.seen_at for each in federations.members(connection, row.seq)]
        stats = JobStats(
            active_workers=sum(now - at <= ACTIVE_S for at in seen),
            total_gradient_updates=federation_updates.count(connection, row.seq),
            completed_chunks=chunks.get(federation_chunks.DONE, 0),
            total_chunks=sum(chunks.values()),
        )
        return JobProgress(
            job=_job_state(connection, row, caller), workers=_workers(connection, row, caller), stats=stats
        )

    return await core.read(operation)


def _job_state(connection: Connection, row: FederationRow, caller: FederationCaller) -> JobState:
    """Show a federation as a job; its step is the highest among workers whose updates the caller may see."""
    spec = spec_of(row)
    versions = federation_versions.page(connection, row.seq, limit=_LISTED)
    losses = [orjson.loads(each.summary)["losses"]["after"] for each in versions]
    known = [loss for loss in losses if loss is not None]
    members = federations.members(connection, row.seq)
    steps = [each.step for each in members if each.step is not None and may_read_updates(caller, row, each.worker)]
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
        created_at=to_datetime(row.created_at),
        started_at=to_optional_datetime(row.started_at),
        completed_at=to_optional_datetime(row.finished_at),
    )


def _percent(connection: Connection, row: FederationRow, rounds_total: int | None) -> float:
    if row.status == FederationStatus.COMPLETED:
        return 100.0
    if rounds_total is None:
        return 0.0
    return round(100.0 * rounds.count(connection, row.seq, RoundStatus.PUBLISHED) / rounds_total, 1)


def _workers(connection: Connection, row: FederationRow, caller: FederationCaller) -> tuple[JobWorker, ...]:
    held = federation_chunks.held(connection, row.seq)
    uploaded = {each.worker for each in federation_updates.of_round(connection, row.seq, row.round, [COUNTED])}
    uploaded |= {each.worker for each in federation_updates.waiting(connection, row.seq)}
    return tuple(
        JobWorker(
            id=each.worker,
            worker_id=each.worker,
            assigned_chunk=held.get(each.worker),
            status=_worker_status(row, each, uploaded),
            **(
                {"current_step": each.step or 0, "local_loss": each.loss}
                if may_read_updates(caller, row, each.worker)
                else {}
            ),
        )
        for each in federations.members(connection, row.seq)
    )


def _worker_status(row: FederationRow, member: MemberRow, uploaded: set[str]) -> _WorkerStatus:
    if FederationStatus(row.status).final:
        return "completed"
    if member.worker in uploaded:
        return "syncing"
    return "training" if member.updates else "assigned"
