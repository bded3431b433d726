"""Makes the reporter of a job: who is told, with which token, and what is delivered at its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.reporter import Reporter
from tunefleet.agent.jobs.site import Site
from tunefleet.agent.jobs.tracing import trace_of
from tunefleet.executors.base import JobExecutor


def reporter_for(site: Site, job: AgentJob) -> Reporter | None:
    """Make what tells a job's backend of it; None if nobody is to be told, or all is told."""
    record = job.record
    if record.backend is None or record.token is None or job.told_all:
        return None
    client = site.backend(record.backend, record.token)
    return Reporter(job, client, load=_load_of(site, job), before_end=_deliverer(site, job))


def _load_of(site: Site, job: AgentJob) -> Callable[[], float | None]:
    def load() -> float | None:
        gpus = job.handle.job.gpus if job.handle is not None else ()
        return site.load(gpus[0]) if gpus else None

    return load


def _deliverer(site: Site, job: AgentJob) -> Callable[[], None] | None:
    """Return what uploads the job's outputs, for a job that our own server gave; others take no files."""
    record = job.record
    executor = site.registry.find(record.kind)
    if not record.delivers or not isinstance(executor, JobExecutor):
        return None

    def deliver() -> None:
        # Once it is through: what is tried again is one delivery.
        began = job.record.completed_at or time.time()
        outputs = [(output.name, output.kind, output.path) for output in executor.outputs(job.folder)]
        client = site.backend(record.backend or "", record.token or "")
        try:
            client.deliver(job.job_id, outputs)
        finally:
            client.close()
        trace_of(site, job).tell("deliver", began, key=str(record.attempt))

    return deliver
