"""Workflows: what users submit."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import orjson
from fastapi import Header, HTTPException, Query, Request, Response

from tunefleet.api import request_bodies
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, one_of
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import Page, RetryRequest, SubmitRequest, ValidateReply, WorkflowDetail, WorkflowView
from tunefleet.schemas.ui import EdgeView

router = api_router(prefix="/workflows", tags=["workflows"])

_STATUSES: Final = ("running", "completed", "failed", "cancelled")
_BODY = request_bodies.documented(request_bodies.json_of(SubmitRequest), ("application/yaml", {"type": "string"}))
_YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain"})


def _is_document(body: bytes) -> bool:
    try:
        parsed_body = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(parsed_body, dict) and "spec" in parsed_body and "document" not in parsed_body


async def _submission(request: Request) -> SubmitRequest:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in _YAML_TYPES:
        raise HTTPException(415, f"Send the workflow file as application/json or application/yaml, not as {kind}.")
    return await request_bodies.parsed(_parse, await request.body(), kind)


def _parse(body: bytes, kind: str) -> SubmitRequest:
    if kind == "application/json" and not _is_document(body):
        return request_bodies.parse(body, SubmitRequest)
    # A workflow file as JSON is accepted as well as a body that contains its text.
    return SubmitRequest(document=request_bodies.text(body))


@router.post("", status_code=201, response_model=WorkflowDetail, openapi_extra=_BODY)
async def submit(
    request: Request,
    core: CoreDep,
    who: Member,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Submit a workflow. Repeating the request with the same `Idempotency-Key` returns the first response."""
    submission = await _submission(request)
    detail = await workflows.submit(core, who, submission, idempotency_key=idempotency_key)
    return request_bodies.answer(detail, 201)


@router.post("/validate", openapi_extra=_BODY)
async def validate(request: Request, core: CoreDep, who: Reader, *, dry_run: bool = False) -> ValidateReply:
    """Validate a workflow file without storing it. The response lists every error with line and column.

    With `dry_run` it also contains where each task would run now, and the result for each worker.
    """
    submission = await _submission(request)
    if dry_run:
        return await explain.of_document(core, who, submission)
    # Parsing a large file takes seconds of pure Python.
    return await asyncio.to_thread(workflows.validate, submission.document, submission.filename)


@router.get("")
async def list_workflows(
    core: CoreDep,
    who: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[str | None, one_of(_STATUSES), Query(examples=["running"])] = None,
    owner: str | None = None,
    name: str | None = None,
) -> Page[WorkflowView]:
    """List workflows, newest first."""
    return await workflows.list_(core, who, limit=limit, cursor=cursor, status=status, owner=owner, name=name)


@router.get("/{workflow_id}")
async def get_workflow(core: CoreDep, who: Reader, workflow_id: str) -> WorkflowDetail:
    """Retrieve a workflow with its tasks and its workflow file."""
    return await workflows.get(core, who, workflow_id)


@router.get("/{workflow_id}/edges")
async def list_edges(core: CoreDep, who: Reader, workflow_id: str) -> list[EdgeView]:
    """List what each task of a workflow takes from earlier tasks: artifacts, and values of their results."""
    return await workflows.edges(core, who, workflow_id)


@router.delete("/{workflow_id}", status_code=204)
async def remove_workflow(core: CoreDep, who: Member, workflow_id: str) -> None:
    """Delete a workflow whose tasks are all final, and everything that they produced."""
    await workflows.remove(core, who, workflow_id)


@router.post("/{workflow_id}/cancel")
async def cancel_workflow(core: CoreDep, who: Member, workflow_id: str) -> WorkflowDetail:
    """Cancel every task of a workflow that is not final."""
    return await workflows.cancel(core, who, workflow_id)


@router.post("/{workflow_id}/retry", status_code=201)
async def retry_workflow(
    core: CoreDep, who: Member, workflow_id: str, changes: RetryRequest | None = None
) -> WorkflowDetail:
    """Run the tasks of a final workflow that did not complete again, as a new workflow. Reuses the other results.

    A second retry is refused while the first one runs and after it has completed, unless `again` is set.
    """
    return await workflows.retry(core, who, workflow_id, changes)
