"""Tasks: what workers run."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import Header, Query, Request, Response
from pydantic import Field

from tunefleet.api import problem_details, request_bodies
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit
from tunefleet.api.routers import api_router
from tunefleet.api.routers.listing import TaskChoice
from tunefleet.errors import InputError, NotFoundError, SpecError
from tunefleet.orchestrator.compat import v1_tasks as record_service
from tunefleet.orchestrator.preflight import explain as why_service
from tunefleet.orchestrator.tasks import listing, tasks
from tunefleet.orchestrator.tasks.listing import SORTS, TaskListQuery
from tunefleet.orchestrator.workflows import reruns, workflows
from tunefleet.schemas.api import CloneRequest, Page, Problem, SubmitRequest, TaskDetail, TaskEdit, TaskView
from tunefleet.schemas.fleet import WhyView
from tunefleet.schemas.v1_tasks import Submitted, TaskAnswer, TaskRecord

router = api_router(prefix="/tasks", tags=["tasks"])
_BODY = request_bodies.documented(
    ("application/yaml", {"type": "string"}),
    (
        "application/json",
        {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"yaml": {"type": "string"}}}]},
    ),
)
_JSON = "application/json"


class TaskFilter(TaskChoice):
    """Filters and order of the task list. Separate several values with commas."""

    limit: Annotated[
        Limit | None, Field(description="Maximum number of items per page. Default: 50 if another parameter is set.")
    ] = None
    cursor: Cursor = None
    sort: Annotated[
        str | None,
        Field(
            max_length=300,
            description=f"{', '.join(SORTS)}, or a metric: `latest.eval_loss`, `best.eval_loss`; prefix `-` for "
            "descending order. Default: -created.",
            examples=["-best.eval_loss"],
        ),
    ] = None
    glance: Annotated[bool, Field(description="Include latest and best metrics, and the loss curve.")] = False
    config: Annotated[bool, Field(description="Include the spec as run.")] = False


Format = Annotated[
    Literal["v1"] | None,
    Query(description="`v1`: `status` is PENDING, DISPATCHED, DONE or FAILED; `record_status` has the current name."),
]


@router.get("", response_model=Page[TaskView] | list[TaskRecord])
async def list_tasks(
    request: Request,
    core: CoreDep,
    who: Reader,
    wanted: Annotated[TaskFilter, Query()],
) -> Response:
    """List tasks, newest first.

    Without any parameter the response has the v1 format: a list of the newest 1,000 tasks, or of fewer if their
    workflow files exceed 16 million characters in total. A `Link` header with `rel="next"` leads to older tasks.
    """
    if not request.query_params:
        newest, before = await record_service.newest(core, who)
        link = {} if before is None else {"Link": f'<{request.url.path}?limit=1000&cursor={before}>; rel="next"'}
        return await request_bodies.listed(newest, headers=link)
    look = TaskListQuery(
        wanted.limit or 50,
        wanted.cursor,
        wanted.q,
        wanted.sort,
        glance=wanted.glance,
        config=wanted.config,
        filters=wanted.look().filters,
    )
    return request_bodies.answer(await listing.page(core, who, look))


@router.post("", response_model=Submitted, openapi_extra=_BODY, responses={400: {"model": Problem}})
async def submit_tasks(
    request: Request,
    core: CoreDep,
    who: Member,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Submit a workflow file in the v1 format. `POST /api/v1/workflows` does the same and returns more details."""
    try:
        content_type = request.headers.get("content-type")
        text = await request_bodies.parsed(document, await request.body(), content_type)
        made = await workflows.submit(core, who, SubmitRequest(document=text), idempotency_key=idempotency_key)
    except (SpecError, InputError, NotFoundError) as error:
        # v1 clients expect 400 for every invalid workflow file.
        return problem_details.from_error(error, status=400)
    return request_bodies.answer(await record_service.submitted(core, made))


@router.get("/{task_id}", response_model=TaskAnswer)
async def get_task(core: CoreDep, who: Reader, task_id: str, format: Format = None) -> Response:
    """Retrieve a task with current and v1 field names. You can shorten the id as long as it stays unique."""
    return request_bodies.answer(await record_service.get(core, who, task_id, v1=format == "v1"))


@router.get("/{task_id}/why")
async def why(core: CoreDep, who: Reader, task_id: str) -> WhyView:
    """Explain why a task is pending, worker by worker."""
    return await why_service.of_task(core, who, task_id)


@router.patch("/{task_id}")
async def edit_task(core: CoreDep, who: Member, task_id: str, changes: TaskEdit) -> TaskDetail:
    """Rename a task, or set its tags and notes; fields that are left out stay as they are."""
    return await tasks.edit(core, who, task_id, changes)


@router.delete("/{task_id}", status_code=204)
async def remove_task(core: CoreDep, who: Member, task_id: str) -> None:
    """Delete a final task and everything that it produced."""
    await tasks.remove(core, who, task_id)


@router.post("/{task_id}/cancel")
async def cancel(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Cancel a task. A running task ends at its next step."""
    return await tasks.cancel(core, who, task_id)


@router.post("/{task_id}/retry", status_code=201)
async def retry(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Submit a final task again as a new task."""
    made = await reruns.retry(core, who, task_id)
    return await tasks.get(core, who, made.tasks[0].id)


@router.post("/{task_id}/clone", status_code=201)
async def clone(core: CoreDep, who: Member, task_id: str, changes: CloneRequest) -> TaskDetail:
    """Submit a task again with changed fields."""
    made = await reruns.clone(core, who, task_id, changes.overrides, changes.inputs)
    return await tasks.get(core, who, made.tasks[0].id)


def document(body: bytes, content_type: str | None) -> str:
    """Return the YAML text of a request."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"The body is not valid UTF-8 (byte {error.start}).") from None
    if (content_type or "").partition(";")[0].strip().lower() == _JSON:
        text = _unwrapped(text)
    if not text.strip():
        raise InputError("The body is empty.", hint="Send the workflow file as YAML.")
    return text


def _unwrapped(text: str) -> str:
    try:
        found = json.loads(text) if text.strip() else ""
    except ValueError as error:
        raise InputError(f"The body is not JSON: {error}.", hint='Send {"yaml": "…"}, or plain YAML.') from None
    inner = found.get("yaml") if isinstance(found, dict) else found
    if not isinstance(inner, str):
        raise InputError("The body has no workflow file.", hint='Send {"yaml": "…"}, a JSON string, or plain YAML.')
    return inner
