"""Routes that read what a job has written: log, metrics, checkpoints, errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tunefleet.agent import bodies, views
from tunefleet.agent.routes_jobs import agent_of
from tunefleet.agent.stream import follow, respond

router = APIRouter(route_class=bodies.Route)


@router.get("/api/training/logs/{job_id}")
def logs(
    request: Request,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """Return lines of a job's log; a negative offset counts from the end."""
    lines, first, total = agent_of(request).book.find(job_id).log(offset, limit)
    return {"logs": lines, "total_lines": total, "offset": first, "limit": limit}


@router.get("/api/training/metrics/{job_id}")
def metrics(request: Request, job_id: str) -> dict[str, Any]:
    """Return the points of a job's series, in the order of their steps."""
    points = agent_of(request).book.find(job_id).journal().points
    return {"job_id": job_id, "metrics": [point.model_dump(mode="json", exclude_none=True) for point in points]}


@router.get("/api/training/checkpoints/{job_id}")
def checkpoints(request: Request, job_id: str) -> dict[str, Any]:
    """Return a job's whole checkpoints, and which one is the best."""
    return views.checkpoints(agent_of(request).book.find(job_id))


@router.get("/api/training/{job_id}/errors")
def errors(request: Request, job_id: str) -> dict[str, Any]:
    """Return what went wrong with a job."""
    return views.errors(agent_of(request).book.find(job_id))


@router.get("/api/training/stream/{job_id}")
def stream(request: Request, job_id: str) -> Response:
    """Stream a job's log lines, points and status, until it has ended."""
    agent = agent_of(request)
    return respond(follow(agent, agent.book.find(job_id), request.headers.get("last-event-id")))
