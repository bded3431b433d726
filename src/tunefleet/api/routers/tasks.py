"""Tasks: what a worker runs."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import Header, Query, Request, Response
from pydantic import Field

from tunefleet.api import problem_details, request_bodies
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, one_of
from tunefleet.api.routers import api_router
from tunefleet.api.routers.listing import TaskChoice
from tunefleet.errors import InputError, NotFoundError, SpecError
from tunefleet.orchestrator.compat import v1_tasks as record_service
from tunefleet.orchestrator.scheduling import explain as why_service
from tunefleet.orchestrator.tasks import listing, tasks
from tunefleet.orchestrator.tasks.listing import SORTS, Look
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import CloneRequest, Page, Problem, SubmitRequest, TaskDetail, TaskView
from tunefleet.schemas.compat.v1 import Submitted, TaskAnswer, TaskRecord
from tunefleet.schemas.fleet import WhyView

router = api_router(prefix="/tasks", tags=["tasks"])


class TaskFilter(TaskChoice):
    """Which tasks to list, and how; a filter takes several values separated by commas."""

    limit: Annotated[Limit | None, Field(description="Items a page; 50 where another parameter is given.")] = None
    cursor: Cursor = None
    sort: Annotated[
        str | None,
        one_of([sign + name for name in SORTS for sign in ("", "-")]),
        Field(description=f"{', '.join(SORTS)}; `-` in front: the greatest first. Default: -created."),
    ] = None
    glance: Annotated[bool, Field(description="With the last values of those that run.")] = False


Format = Annotated[
    Literal["v1"] | None,
    Query(description="`v1`: `status` is PENDING, DISPATCHED, DONE or FAILED, and `record_status` our word."),
]
_BODY = request_bodies.documented(
    ("application/yaml", {"type": "string"}),
    (
        "application/json",
        {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"yaml": {"type": "string"}}}]},
    ),
)


@router.get("", response_model=Page[TaskView] | list[TaskRecord])
async def list_tasks(
    request: Request,
    core: CoreDep,
    who: Reader,
    wanted: Annotated[TaskFilter, Query()],
) -> Response:
    """List tasks, newest first.

    Without any parameter the answer is v1's: a bare list of records of the newest 1,000 tasks, or of fewer where
    their documents have more than 16 million characters together; a `Link` with `rel="next"` leads to the older ones.
    """
    if not request.query_params:
        newest, before = await record_service.newest(core, who)
        link = {} if before is None else {"Link": f'<{request.url.path}?limit=1000&cursor={before}>; rel="next"'}
        return await request_bodies.listed(newest, headers=link)
    look = Look(
        wanted.limit or 50, wanted.cursor, wanted.q, wanted.sort, glance=wanted.glance, filters=wanted.look().filters
    )
    return request_bodies.answer(await listing.page(core, who, look))


@router.post("", response_model=Submitted, openapi_extra=_BODY, responses={400: {"model": Problem}})
async def submit_tasks(
    request: Request,
    core: CoreDep,
    who: Member,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Submit a document as v1's clients do; `POST /api/v1/workflows` is the same with more to say."""
    try:
        content_type = request.headers.get("content-type")
        text = await request_bodies.parsed(document, await request.body(), content_type)
        made = await workflows.submit(core, who, SubmitRequest(document=text), idempotency_key=idempotency_key)
    except (SpecError, InputError, NotFoundError) as error:
        # v1's word for whatever is wrong with a document.
        return problem_details.from_error(error, status=400)
    return request_bodies.answer(await record_service.submitted(core, made))


@router.get("/{task_id}", response_model=TaskAnswer)
async def get_task(core: CoreDep, who: Reader, task_id: str, format: Format = None) -> Response:
    """Show a task, under our names and v1's; the id may be shortened as long as it is unique."""
    return request_bodies.answer(await record_service.get(core, who, task_id, v1=format == "v1"))


@router.get("/{task_id}/why")
async def why(core: CoreDep, who: Reader, task_id: str) -> WhyView:
    """Say why a task waits, worker by worker."""
    return await why_service.of_task(core, who, task_id)


@router.delete("/{task_id}", status_code=204)
async def remove_task(core: CoreDep, who: Member, task_id: str) -> None:
    """Remove a final task with what it produced."""
    await tasks.remove(core, who, task_id)


@router.post("/{task_id}/cancel")
async def cancel(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Cancel a task; one that runs ends at its next step."""
    return await tasks.cancel(core, who, task_id)


@router.post("/{task_id}/retry", status_code=201)
async def retry(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Submit a final task again as a new one."""
    made = await tasks.retry(core, who, task_id)
    return await tasks.get(core, who, made.tasks[0].id)


@router.post("/{task_id}/clone", status_code=201)
async def clone(core: CoreDep, who: Member, task_id: str, changes: CloneRequest) -> TaskDetail:
    """Submit a task again with some fields changed."""
    made = await tasks.clone(core, who, task_id, changes.overrides)
    return await tasks.get(core, who, made.tasks[0].id)


_JSON = "application/json"


def document(body: bytes, content_type: str | None) -> str:
    """Return the YAML text of a request."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"The body is not UTF-8: byte {error.start} cannot be read.") from None
    if (content_type or "").partition(";")[0].strip().lower() == _JSON:
        text = _unwrapped(text)
    if not text.strip():
        raise InputError("The body is empty.", hint="Send the document as YAML.")
    return text


def _unwrapped(text: str) -> str:
    try:
        found = json.loads(text) if text.strip() else ""
    except ValueError as error:
        raise InputError(f"The body is not JSON: {error}.", hint='Send {"yaml": "…"}, or YAML as it is.') from None
    inner = found.get("yaml") if isinstance(found, dict) else found
    if not isinstance(inner, str):
        raise InputError("The body has no document.", hint='Send {"yaml": "…"}, a JSON string, or YAML as it is.')
    return inner
