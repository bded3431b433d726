"""The OpenAPI document: what FastAPI derives, plus keys, problems, bodies that are read as bytes, and examples.

Knows the shape of the API only.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tunefleet.api import examples, problem_details
from tunefleet.api.routers.campaigns import CampaignApply
from tunefleet.schemas import chat, federated, live
from tunefleet.schemas.api import PROBLEM_PREFIX, Problem, SubmitRequest
from tunefleet.schemas.training_protocol import jobs, reports, training
from tunefleet.schemas.worker_link import ExchangeRequest, JournalBatch, RegisterRequest
from tunefleet.spec.options.federation_options import FederationSpec

TAGS: Final = [
    {"name": "workflows", "description": "What a user submits."},
    {"name": "tasks", "description": "What a worker runs."},
    {"name": "steering", "description": "Pause, resume and stop a running task; commands and checkpoints."},
    {"name": "chat", "description": "Talking with a model that a worker holds ready."},
    {"name": "reports", "description": "Journal, metrics and log of a task."},
    {"name": "events", "description": "What happened, as a list and as a resumable stream."},
    {"name": "artifacts", "description": "What tasks produced and users pushed."},
    {"name": "blobs", "description": "Files by digest: resumable upload, ranged download."},
    {"name": "results", "description": "Results and files of tasks, under the names of the Worker Guide."},
    {"name": "workers", "description": "The machines that run tasks."},
    {"name": "link", "description": "How a worker meets the server."},
    {"name": "federations", "description": "Many workers train one adapter, each on its own data."},
    {"name": "campaigns", "description": "Training that goes on by itself, chunk by chunk."},
    {"name": "models", "description": "What campaigns have made, and which version is promoted."},
    {"name": "training", "description": "The backend of training agents: jobs, reports, polls."},
    {"name": "notifications", "description": "Who is told what of tasks, and what they were told."},
    {"name": "keys", "description": "API keys and login links."},
    {"name": "projects", "description": "Who shares the fleet: quotas, use and cost, and the audit log."},
    {"name": "server", "description": "Version, health, housekeeping."},
]
_BYTES_BODIES: Final[tuple[type[BaseModel], ...]] = (
    SubmitRequest,
    ExchangeRequest,
    RegisterRequest,
    JournalBatch,
    CampaignApply,
    FederationSpec,
    chat.ChatPoll,
    chat.ChatPiece,
    Problem,
    live.LiveHello,
    live.LiveEvents,
    live.LiveCampaigns,
    live.LiveProgress,
    live.LiveLoads,
    live.LivePoints,
    training.Heartbeat,
    training.StatusPatch,
    jobs.ControlAction,
    jobs.JobRegistration,
    reports.LogLines,
    reports.MetricBatch,
    reports.ReportedPoint,
    jobs.ParameterUpdate,
    reports.PredictionBatch,
    jobs.ResumeJob,
    jobs.StartJob,
    federated.ClaimChunk,
    federated.JobCreate,
)
_EXAMPLES: Final = examples.BODIES
_KEYS: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, or the token of an attempt or a federation.",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_PROBLEM_EXAMPLE: Final = {
    "type": f"{PROBLEM_PREFIX}not_found",
    "title": "Not Found",
    "status": 404,
    "detail": "There is no task 'task-0123456789ab'.",
}
_EXAMPLE_PARAMETERS: Final = {
    "task_id": "task-0123456789ab",
    "workflow_id": "wf-0123456789ab",
    "artifact_id": "art-0123456789ab",
    "turn_id": "turn-0123456789ab",
    "command_id": "cmd-0123456789ab",
    "worker_id": "lab-3",
    "key_id": "key-0123456789ab",
    "channel_id": "chn-0123456789ab",
    "job_id": "fed-0123456789ab",
    "federation_id": "fed-0123456789ab",
    "worker": "lab-3",
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


def install(app: FastAPI) -> None:
    """Make the app publish this document at its `openapi_url`."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS)
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    template = "#/components/schemas/{model}"
    _, extra = models_json_schema([(model, "validation") for model in _BYTES_BODIES], ref_template=template)
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = _KEYS
    found["security"] = [{name: []} for name in _KEYS]
    for path in found["paths"].values():
        for operation in path.values():
            _finish(operation)
    return found


def _finish(operation: dict[str, Any]) -> None:
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        # A body that may be left out is one of its model and null.
        forms = [content["schema"], *content["schema"].get("anyOf", ())]
        name = next((form["$ref"] for form in forms if "$ref" in form), "").rpartition("/")[2]
        if name in _EXAMPLES:
            content["example"] = _EXAMPLES[name]
        elif kind == "application/yaml":
            content["example"] = examples.DOCUMENT
        elif any("yaml" in form.get("properties", {}) for form in content["schema"].get("oneOf", ())):
            content["example"] = {"yaml": examples.DOCUMENT}
    for parameter in operation.get("parameters", ()):
        example = _EXAMPLE_PARAMETERS.get(parameter["name"])
        if example is not None and parameter["in"] == "path":
            parameter["example"] = example
    responses = operation["responses"]
    responses.pop("422", None)
    for status, response in responses.items():
        content = response.get("content", {})
        if status.startswith(("4", "5")) and "application/json" in content:
            content[problem_details.MEDIA_TYPE] = content.pop("application/json")
    responses["default"] = {
        "description": "A problem; `type` ends with the error's code.",
        "content": {
            problem_details.MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": _PROBLEM_EXAMPLE,
            }
        },
    }
