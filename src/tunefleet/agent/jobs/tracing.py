"""The agent's part of traces: a claimed job lies below its attempt, one that was posted below whoever posted it."""

from __future__ import annotations

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.records import AgentRecord
from tunefleet.agent.jobs.site import Site
from tunefleet.observability import traceparent
from tunefleet.runtime.tracing import AttemptTrace
from tunefleet.schemas.training_protocol.training import JobState


def placed(record: AgentRecord, asked_by: str | None, *, sends: bool) -> AgentRecord:
    """Return the record of a job that was posted, with its place in a trace.

    Args:
        record: The job.
        asked_by: The `traceparent` that it came with.
        sends: Whether this agent sends spans: then a job that came without one heads a trace of its own.
    """
    parent = traceparent.read(asked_by)
    if parent is None and not sends:
        return record
    own = traceparent.of_task(record.job_id, parent).traceparent
    return record.model_copy(update={"traceparent": own, "asked_by": None if parent is None else parent.traceparent})


def trace_of(site: Site, job: AgentJob) -> AttemptTrace:
    """Return what a job's spans are told to."""
    return AttemptTrace(job.offer(), site.spans, site.name)


def tell_end(site: Site, job: AgentJob) -> None:
    """Tell the whole of a job that has ended; of a claimed one the server does."""
    record = job.record
    if record.state.final and not record.polled:
        error = (record.error or record.state.value) if record.state is JobState.FAILED else None
        trace_of(site, job).whole("task", record.order, record.asked_by, error)
