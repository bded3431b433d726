"""The OpenAPI document: what FastAPI derives, plus API keys, problems, bodies read as bytes, and examples.

Knows only the shape of the API.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tunefleet.api import problem_details
from tunefleet.api.routers.campaigns import CampaignApply
from tunefleet.schemas import chat, endpoints, federated, live
from tunefleet.schemas.api import PROBLEM_PREFIX, Problem, SubmitRequest
from tunefleet.schemas.sweep import SweepCreate
from tunefleet.schemas.training_protocol import jobs, reports, training
from tunefleet.schemas.worker_link import ExchangeRequest, JournalBatch, RegisterRequest
from tunefleet.spec.options.federation_options import FederationSpec

TAGS: Final = [
    {"name": "workflows", "description": "Submit, validate and manage workflows."},
    {"name": "tasks", "description": "List, inspect, retry and cancel tasks."},
    {"name": "control", "description": "Pause, resume and stop running tasks; commands and checkpoints."},
    {"name": "endpoints", "description": "Models behind an OpenAI-compatible API."},
    {"name": "chat", "description": "Chat with a model that a worker has loaded."},
    {"name": "reports", "description": "Journal, metrics and logs of tasks."},
    {"name": "events", "description": "Events, as a list and as a resumable stream."},
    {"name": "artifacts", "description": "Files that tasks produce and users upload."},
    {"name": "blobs", "description": "Files by digest: resumable uploads and range downloads."},
    {"name": "results", "description": "Results and files of tasks, in the format of the Worker Guide."},
    {"name": "workers", "description": "The machines that run tasks."},
    {"name": "link", "description": "Registration and message exchange of workers."},
    {"name": "federations", "description": "Federated training: workers train one adapter, each on its own data."},
    {"name": "campaigns", "description": "Continuous training, one chunk of data per cycle."},
    {"name": "models", "description": "Model versions that campaigns produce, and which one is promoted."},
    {"name": "training", "description": "Backend of training agents: jobs, reports, polls."},
    {"name": "sweeps", "description": "Hyperparameter sweeps: trials, leaderboards, parameter importance."},
    {"name": "notifications", "description": "Notification channels and deliveries."},
    {"name": "keys", "description": "API keys, login links and browser sessions."},
    {"name": "projects", "description": "Projects that share the fleet: quotas, usage and cost; the audit log."},
    {"name": "server", "description": "Version, health and maintenance."},
]
_BYTES_BODIES: Final[tuple[type[BaseModel], ...]] = (
    SubmitRequest,
    SweepCreate,
    ExchangeRequest,
    RegisterRequest,
    JournalBatch,
    CampaignApply,
    FederationSpec,
    chat.ChatPoll,
    chat.ChatPiece,
    endpoints.RelayPoll,
    endpoints.ResponseFrames,
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
_KEYS: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, an attempt token or a federation token.",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_PROBLEM_EXAMPLE: Final = {
    "type": f"{PROBLEM_PREFIX}not_found",
    "title": "Not Found",
    "status": 404,
    "detail": "Run 'task-0123456789ab' not found.",
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
SWEEP: Final = """apiVersion: tunefleet/v1
metadata: {name: rates}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:extraction", messages_field: messages, eval: {split: test}}
  training: {max_steps: 100}
sweep:
  trials: 8
  parameters:
    training.learning_rate: {min: 1e-5, max: 1e-2, log: true}
"""
DOCUMENT: Final = """apiVersion: tunefleet/v1
kind: Workflow
metadata:
  name: hello
spec:
  taskType: echo
  data:
    type: list
    items: [hello]
"""
_DIGEST: Final = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_TOKEN: Final = "att-0123456789ab.2cf24dba5fb0a30e26e83b2ac5b9e29e"
_FILE: Final = {"path": "train.jsonl", "digest": _DIGEST, "size_bytes": 5}
_TASK_BODIES: Final[dict[str, dict[str, Any]]] = {
    "SubmitRequest": {"document": DOCUMENT, "filename": "hello.yaml"},
    "SweepCreate": {"document": SWEEP, "filename": "sweep.yaml"},
    "TaskEdit": {"name": "baseline", "tags": ["sweep"], "notes": "Warm-up is too short."},
    "CloneRequest": {"overrides": {"training.learning_rate": 1e-4}},
    "RetryRequest": {"overrides": {"stages.train.spec.training.learning_rate": 1e-4}},
    "CommandRequest": {"command": "set", "data": {"learning_rate": 1e-4}},
    "ResumeRequest": {"from_step": "best"},
    "StopRequest": {"save": True},
    "ElasticRequest": {"enabled": False},
    "ChatRequest": {"messages": [{"role": "user", "content": "How many are 2 dozen eggs?"}], "model": "tuned"},
    "ChatPoll": {"ready": True, "models": ["base", "tuned"], "wait_s": 0.0},
    "RelayPoll": {"ready": True, "models": ["support-bot"], "wait_s": 0.0},
    "ResponseFrames": {"frames": [{"id": "call-1", "status": 200, "content_type": "application/json", "end": True}]},
    "ChatPiece": {"text": "24", "finish": "stop", "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
    "ManyRequest": {"action": "cancel", "task_ids": ["task-0123456789ab"]},
    "SessionRequest": {"code": "Zm9yIG9uZSB1c2Ugb25seSwgdGVuIG1pbnV0ZXM"},
    "KeyCreate": {"name": "laptop", "role": "member"},
    "ProjectCreate": {"name": "vision", "weight": 2.0, "max_running": 8, "gpu_hours": 500.0},
    "ProjectChange": {"gpu_hours": 800.0},
    "InvitationCreate": {"worker_id": "gpu-3", "tags": ["a100"], "expires_s": 3600},
    "JoinRequest": {"token": "tfj_example", "secret_hash": "0123456789abcdef" * 4, "name": "gpu-3"},
    "ChannelCreate": {"name": "team", "to": "https://example.org/hook", "on": ["failed", "stalled"]},
    "ChannelChange": {"enabled": False},
    "PruneRequest": {"older_than_s": 2_592_000, "dry_run": True},
    "BlobQuery": {"blobs": [_FILE]},
    "DirectAsk": {"size_bytes": 17_179_869_184},
    "DirectLinksAsk": {"parts": [1, 2, 3]},
    "DirectGiveUp": {"why": "The worker cannot reach s3.example.org."},
    "ArtifactCreate": {
        "name": "questions",
        "kind": "dataset",
        "files": [_FILE],
        "digest": "b5f2c2dc42b0c6ddbb2b2a4d4c5f3a6c2f6f4b3a1f0e9d8c7b6a5f4e3d2c1b0a",
    },
    "RegisterRequest": {
        "worker_id": "lab-3",
        "session": "5f0c1d",
        "state_id": "9a7e42",
        "capabilities": {
            "version": "0.1.0",
            "hostname": "lab-3",
            "executors": [{"kind": "lora_sft", "slot_class": "job"}, {"kind": "echo", "slot_class": "light"}],
            "slots": {"job": 1, "light": 32},
            "cpu_count": 16,
            "memory_total_bytes": 68_719_476_736,
            "memory_free_bytes": 51_539_607_552,
            "disk_free_bytes": 214_748_364_800,
        },
    },
    "ExchangeRequest": {
        "worker_id": "lab-3",
        "session": "5f0c1d",
        "wait_s": 0.0,
        "holding": [_TOKEN],
        "want": {"job": 1, "light": 32},
    },
    "ResultEnvelope": {
        "task_id": "task-0123456789ab",
        "worker_id": "lab-3",
        "result": {"ok": True, "items": [{"index": 0, "output": "hello"}]},
        "metadata": {"attempt": 1},
    },
    "JournalBatch": {
        "launch": "launch-1",
        "from_seq": 0,
        "lines": [json.dumps({"seq": 0, "at": 1.0, "type": "launch", "launch": "launch-1"})],
    },
}
_CAMPAIGN_BODIES: Final[dict[str, dict[str, Any]]] = {
    "CampaignApply": {
        "campaigns": {
            "daily": {
                "enabled": True,
                "datasets": [
                    {"name": "yahma/alpaca-cleaned", "field_instruction": "instruction", "field_output": "output"}
                ],
                "model_repo": "Qwen/Qwen2.5-0.5B",
                "hours_to_complete": 8,
                "samples_per_training": 150_000,
                "run_intervals": {"min_hours": 6, "max_hours": 8},
                "budget": {"max_cost": 100, "cost_per_task": 5},
            }
        },
        "start": True,
    },
    "CampaignRetry": {"cycle": 3, "step": "merge"},
    "CampaignRemerge": {"cycle": 3},
    "CampaignRollback": {"version": 2},
}
_JOB: Final = "exec-20260101-1"
_TRAINING_BODIES: Final[dict[str, dict[str, Any]]] = {
    "ReportedPoint": {
        "step": 10,
        "epoch": 0.1,
        "train_loss": 1.25,
        "learning_rate": 2e-4,
        "gpu_memory_allocated_gb": 7.5,
        "timestamp": "2026-01-01T12:00:00Z",
        "total_steps": 100,
    },
    "MetricBatch": {"job_id": _JOB, "metrics": [{"step": 10, "epoch": 0.1, "train_loss": 1.25}]},
    "StatusPatch": {"status": "running"},
    "LogLines": {"logs": ["[2026-01-01 12:00:00] Training from step 0 to 100."], "offset": 0},
    "JobRegistration": {
        "job_id": _JOB,
        "model_name": "Qwen/Qwen2.5-0.5B",
        "dataset_path": "train.jsonl",
        "name": "my job",
        "config": {"training": {"method": "sft", "use_lora": True, "num_epochs": 1}},
    },
    "ControlAction": {"action": "pause"},
    "ResumeJob": {"config_adjustments": {"learning_rate": 1e-4}},
    "ParameterUpdate": {"learning_rate": 1e-4},
    "PredictionBatch": {
        "job_id": _JOB,
        "predictions": [{"step": 10, "epoch": 0.1, "sample_index": 0, "prompt": "2 + 2 =", "prediction": "4"}],
    },
    "StartJob": {"config_id": "wf-0123456789ab", "name": "again"},
    "Heartbeat": {"holding": [_JOB], "want": 1},
}
_FEDERATED_DIGEST: Final = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_FEDERATED_BODIES: Final[dict[str, dict[str, Any]]] = {
    "FederationSpec": {
        "name": "gsm8k",
        "base_model": "Qwen/Qwen2.5-0.5B",
        "strategy": {"name": "fedavg_exact"},
        "min_workers": 2,
        "deadline_s": 600,
        "rounds": 20,
    },
    "JobCreate": {
        "name": "gsm8k",
        "model_type": "Qwen/Qwen2.5-0.5B",
        "config": {"lora_rank": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]},
        "fed_config": {"aggregation_algorithm": "fedavg", "sync_interval": 100, "min_workers": 2, "max_workers": 8},
    },
    "ClaimChunk": {"workerId": 1, "completedChunk": 0},
    "UpdateCreate": {
        "worker": "lab-3",
        "step": 100,
        "num_examples": 1600,
        "sha256": _FEDERATED_DIGEST,
        "config": {
            "peft_type": "LORA",
            "base_model_name_or_path": "Qwen/Qwen2.5-0.5B",
            "r": 16,
            "lora_alpha": 32,
            "target_modules": ["q_proj", "v_proj"],
        },
        "base_version": 3,
        "upload_dtype": "bf16",
        "losses": {"before": 2.31, "after": 1.98},
    },
    "MemberChange": {"callback_url": "https://lab-3.example.org/adapters"},
    "RollbackRequest": {"version": 6},
    "TokenReplace": {"old_for_s": 3600},
}
BODIES: Final = _TASK_BODIES | _TRAINING_BODIES | _FEDERATED_BODIES | _CAMPAIGN_BODIES


def install(app: FastAPI) -> None:
    """Make the app publish this document at its `openapi_url`."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    template = "#/components/schemas/{model}"
    _, extra = models_json_schema([(model, "validation") for model in _BYTES_BODIES], ref_template=template)
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = _KEYS
    document["security"] = [{name: []} for name in _KEYS]
    for path in document["paths"].values():
        for operation in path.values():
            _finish(operation)
    return document


def _finish(operation: dict[str, Any]) -> None:
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        # The schema of an optional body is a union of its model and null.
        forms = [content["schema"], *content["schema"].get("anyOf", ())]
        name = next((form["$ref"] for form in forms if "$ref" in form), "").rpartition("/")[2]
        if name in BODIES:
            content["example"] = BODIES[name]
        elif kind == "application/yaml":
            content["example"] = DOCUMENT
        elif any("yaml" in form.get("properties", {}) for form in content["schema"].get("oneOf", ())):
            content["example"] = {"yaml": DOCUMENT}
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
        "description": "An error; `type` ends with the error code.",
        "content": {
            problem_details.MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": _PROBLEM_EXAMPLE,
            }
        },
    }
