"""Columns of a task that come from its spec: requirement, rank, retries and limits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
from pydantic import ValidationError

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks
from tunefleet.errors import SpecError
from tunefleet.placement import (
    LIGHT_KINDS,
    Requirement,
    only,
)
from tunefleet.spec import TASK_KINDS, BaseTaskSpec, ModelTrainingSpec, TaskNode, dump_task_spec, load_task_spec
from tunefleet.spec.expressions.references import secrets_of
from tunefleet.spec.options.output import S3

# Spec blocks for queueing, retries and notifications, which all kinds share.
_COMMON: Final = ("priority", "limits", "retry", "on_lost", "resources", "engine", "sloSeconds", "notify")
# One point of priority equals this many seconds in the queue.
PRIORITY_S: Final = 600.0
# Tasks without a deadline count as due this long after they were queued.
DUE_S: Final = 3600.0
_LOAD_S: Final = 1e-6
_MAX_LOAD: Final = 1000
# Built-in kinds only; for a third-party kind the executor reports whether it coalesces.
MERGEABLE: Final = frozenset({"inference", "rag"})
# Keys in which equal tasks may differ.
_IGNORED_KEYS: Final = frozenset({"data", "notify"})
# The same below `inference`.
_IGNORED_INFERENCE_KEYS: Final = frozenset({"system_prompt", "systemPrompt"})


def columns(spec: BaseTaskSpec, need: Requirement, now: float, submitted_at: float | None = None) -> dict[str, Any]:
    """Return the task columns that the spec determines."""
    load = spec.resources.estimated_load
    due_at = None if spec.slo_s is None else (submitted_at or now) + spec.slo_s
    return {
        "slot_class": need.slot_class, "priority": spec.priority, "rank": rank(now, spec.priority, load, due_at),
        "requirement_key": need.key, "max_attempts": spec.retry.max_attempts, "backoff_s": spec.retry.backoff_s,
        "retry_on": ",".join(spec.retry.on), "on_lost": spec.on_lost, "max_runtime_s": spec.limits.max_runtime_s,
    }  # fmt: skip


def described(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return model, dataset and training method for lists; None where the spec has none or an unresolved reference.

    The method is the trainer with what it trains, such as `full_sft`, `lora_dpo` or `qlora_sft`.
    """
    kind, data = str(spec["taskType"]), spec.get("data")
    source = _at(spec, "model", "source", "identifier")
    found = [_at(spec, "data", name) for name in ("artifact", "dataset_name", "path")]
    dataset = data if isinstance(data, str) else next((each for each in found if each), None)
    return {"model": _text(source), "dataset": _text(dataset), "method": _method(kind, spec)}


def _method(kind: str, spec: Mapping[str, Any]) -> str | None:
    if not issubclass(TASK_KINDS.get(kind, BaseTaskSpec), ModelTrainingSpec):
        return None
    trainer = kind.removeprefix("lora_")
    if trainer == kind and spec.get("lora") is None:
        return f"full_{trainer}"
    in_4bit = _at(spec, "quantization", "load_in_4bit") or _at(spec, "model", "transformers", "load_in_4bit")
    return f"qlora_{trainer}" if in_4bit is True else f"lora_{trainer}"


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not _is_reference(value) else None


def need_of(spec: BaseTaskSpec, task_id: str) -> Requirement:
    """Return a task's requirement; with an engine, it includes the tag of the workers started for this task."""
    need = requirement_of(spec)
    return need if spec.engine is None else replace(need, tags=(*need.tags, only(task_id)))


def queue_deadline(spec: BaseTaskSpec, now: float) -> float | None:
    """Return when a task that is ready now times out in the queue; None without a limit."""
    wait_s = spec.limits.max_queue_s
    return None if wait_s is None else now + wait_s


def so_far(raw: Mapping[str, Any]) -> tuple[BaseTaskSpec, Requirement]:
    """Return what is known of a task whose spec still has unresolved references.

    Returns:
        The blocks that every kind has, and the requirement, both without referenced values.
    """
    kind, known = str(raw["taskType"]), _known(raw)
    try:
        spec = load_task_spec(known)
    except SpecError:
        # A required field is a reference.
        need = Requirement(kind=kind, slot_class="light" if kind in LIGHT_KINDS else "job")
        return _common(kind, known), need
    return spec, requirement_of(spec)


def known(node: TaskNode) -> BaseTaskSpec:
    """Return the spec of a task, or what is known of it before its references are resolved."""
    return node.spec if node.spec is not None else so_far(node.raw)[0]


def _common(kind: str, known: Mapping[str, Any]) -> BaseTaskSpec:
    blocks = {key: known[key] for key in _COMMON if key in known}
    try:
        return BaseTaskSpec.model_validate({"taskType": kind, **blocks}, by_alias=True, by_name=False)
    except ValidationError:
        return BaseTaskSpec(task_type=kind)


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items() if not _is_reference(each)}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value if not _is_reference(each)]
    return value


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def store(connection: Connection, need: Requirement) -> None:
    """Store a requirement unless it exists."""
    tasks.add_requirement(connection, need.key, need.dump())


def rank(queued_at: float, priority: int, load: int = 0, due_at: float | None = None) -> float:
    """Return a task's rank in the queue; lower goes first.

        rank = min(queued_at, due_at − 3600) − 600·priority − load/1,000,000

    All tasks age equally, so that priority and waiting time make one number that never changes. A task with a deadline
    counts as queued an hour before it, if that is earlier than it was: as if every other task were due an hour after it
    was queued. Load only breaks ties between tasks queued at the same moment: the heavier goes first, so that long runs
    do not come last.

    Args:
        load: Estimated load, in any unit, capped at 1000.
        due_at: Deadline as Unix time; None without one.
    """
    since = queued_at if due_at is None else min(queued_at, due_at - DUE_S)
    return since - priority * PRIORITY_S - min(load, _MAX_LOAD) * _LOAD_S


def merge_key(owner: str, project: str, spec: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the key that equal tasks share; None if tasks of the kind are never coalesced.

    Args:
        inputs: Pointer into the spec → digest and name of an artifact.
    """
    if spec["taskType"] in TASK_KINDS and spec["taskType"] not in MERGEABLE:
        return None
    shared = {name: value for name, value in spec.items() if name not in _IGNORED_KEYS}
    inference = shared.get("inference")
    if isinstance(inference, Mapping):
        shared["inference"] = {name: value for name, value in inference.items() if name not in _IGNORED_INFERENCE_KEYS}
    files = {
        pointer: ref["digest"] for pointer, ref in inputs.items() if pointer.partition(".")[0] not in _IGNORED_KEYS
    }
    text = orjson.dumps([project, owner, shared, files], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


def requirement_of(spec: BaseTaskSpec) -> Requirement:
    """Return the requirement of a spec."""
    hardware, wanted = spec.resources.hardware, spec.devices
    light = spec.task_type in LIGHT_KINDS
    # An inline task takes a GPU only if its spec requests one.
    count = 0 if light and hardware.gpu is None else wanted.count
    gpu = hardware.gpu if count else None
    return Requirement(
        kind=spec.task_type,
        slot_class="light" if light else "job",
        cpu=hardware.cpu or 0,
        memory_bytes=hardware.memory_bytes or 0,
        disk_bytes=hardware.disk_bytes or 0,
        gpu_count=count,
        gpu_optional=wanted.optional and count > 0,
        gpu_all=wanted.everything and count > 0,
        gpu_places=wanted.indices if count else (),
        gpu_first=wanted.primary if count else None,
        gpu_type=gpu.type if gpu is not None and gpu.type != "any" else None,
        gpu_memory_bytes=(gpu.memory_bytes or 0) if gpu is not None else 0,
        gpu_cause=wanted.cause if count else None,
        tags=tuple(sorted(set(spec.resources.tags))),
        secrets=secrets_of(dump_task_spec(spec)),
        environments=spec.environments,
        features=(*spec.features, *((S3,) if spec.output.destination.type == S3 else ())),
        code=spec.requires_code,
        model=spec.model_identifier,
        datasets=_datasets(spec),
        nodes=spec.resources.least_nodes,
        nodes_max=spec.resources.most_nodes,
        no_worker_grace_s=spec.limits.no_worker_grace_s,
    )


def _datasets(spec: BaseTaskSpec) -> tuple[str, ...]:
    data = getattr(spec, "data", None)
    named = [getattr(data, "dataset_name", None)]
    if getattr(data, "type", None) == "dataset":
        named.append(getattr(data, "url", None))
    return tuple(sorted({name for name in named if name}))
