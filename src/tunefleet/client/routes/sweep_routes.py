"""The server's routes of sweeps as calls."""

from __future__ import annotations

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.sweep import ImportanceView, SweepCreate, SweepDetail, SweepView


def create_sweep(request: SweepCreate, idempotency_key: str) -> Call[SweepDetail]:
    """Create a sweep.

    Args:
        request: The workflow file with `sweep`, and the digests of its local files.
        idempotency_key: Repeating the call with the same key returns the first response.
    """
    headers = {"Idempotency-Key": idempotency_key}
    return Call("POST", "/sweeps", model(SweepDetail), body=request, headers=headers)


def list_sweeps(
    *, status: str | None = None, owner: str | None = None, limit: int = 100, cursor: str | None = None
) -> Call[Page[SweepView]]:
    """Return a page of sweeps, newest first."""
    params = {"status": status, "owner": owner, "limit": limit, "cursor": cursor}
    return Call("GET", "/sweeps", model(Page[SweepView]), params)


def get_sweep(sweep: str) -> Call[SweepDetail]:
    """Return a sweep with its trials, the best one first."""
    return Call("GET", path("sweeps", sweep), model(SweepDetail))


def sweep_importance(sweep: str) -> Call[ImportanceView]:
    """Return how much each parameter of a sweep matters for the objective."""
    return Call("GET", path("sweeps", sweep, "importance"), model(ImportanceView))


def stop_sweep(sweep: str) -> Call[SweepDetail]:
    """Stop a sweep: no further trial starts, and running trials are stopped and kept."""
    return Call("POST", path("sweeps", sweep, "stop"), model(SweepDetail))


def remove_sweep(sweep: str) -> Call[None]:
    """Delete a sweep that has ended; its runs are kept."""
    return Call("DELETE", path("sweeps", sweep), nothing, repeatable=False)
