"""Jobs for agents: the first one in the queue that an agent may take and can run, and its configuration."""

from __future__ import annotations

from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.access import project_rows
from tunefleet.db.repositories import attempts, dependencies, queue, tasks, training_protocol
from tunefleet.db.repositories.attempts import OfferRow
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.orchestrator.access.quotas import QuotaChecks
from tunefleet.orchestrator.fleet import cluster_state, worker_state
from tunefleet.orchestrator.fleet.agents import TRAINING_KINDS
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.tasks import resume
from tunefleet.orchestrator.views import to_datetime
from tunefleet.placement import Fit, WorkerState, match
from tunefleet.schemas.training_protocol.training import PolledJob
from tunefleet.spec import LoraSftSpec, TrainingTaskSpec, load_task_spec

# Number of queued tasks per need that one poll examines.
_EXAMINED: Final = 32


def first(connection: Connection, agent: WorkerRow, *, owner: str | None, leased: bool, now: float) -> TaskRow | None:
    """Return the first queued task that an agent may take and can run.

    Args:
        owner: Only tasks of this owner; None for all owners.
    """
    state, held = _state(connection, agent, now), QuotaChecks(connection, now)
    found: list[TaskRow] = []
    for key, need in cluster_state.needs(connection, queue.groups(connection)).items():
        if need.kind not in TRAINING_KINDS or not isinstance(match(need, state), Fit):
            continue
        if held.why(agent.project, need) is not None:
            continue
        rows = training_protocol.waiting(connection, key, project=agent.project, owner=owner, now=now, limit=_EXAMINED)
        allowed = (row for row in rows if refusal(connection, agent, row, leased=leased) is None)
        found += [row for _, row in zip(range(1), allowed, strict=False)]
    return min(found, key=lambda row: row.rank) if found else None


def suits(connection: Connection, agent: WorkerRow, row: TaskRow, *, leased: bool, now: float) -> str | None:
    """Return why an agent cannot run a task; None if it can."""
    state = _state(connection, agent, now)
    need = cluster_state.needs(connection, [row.requirement_key])[row.requirement_key]
    result = match(need, state)
    if not isinstance(result, Fit):
        return f"This agent {result.reason}."
    # Two servers could each count the project's running tasks and both exceed its quota.
    project_rows.lock(connection, [row.project])
    over = QuotaChecks(connection, now).why(row.project, need)
    if over is not None:
        return over
    return refusal(connection, agent, row, leased=leased)


def refusal(connection: Connection, agent: WorkerRow, row: TaskRow, *, leased: bool) -> str | None:
    """Return why a task is not for an agent regardless of resources; None if it is."""
    where = attempts.resumes_of(connection, [row.id]).get(row.id)
    if where is not None and where.bound and where.worker_id != agent.id:
        return f"It resumes from a checkpoint that only {where.worker_id} has."
    if dependencies.shards_of(connection, [row.seq]):
        return "It is a shard of a federated run, which agents do not support."
    if leased:
        return None
    if tasks.document(connection, row).inputs != "{}":
        return "It needs uploaded files, which an agent without heartbeats cannot fetch."
    return None


def polled(connection: Connection, row: TaskRow, *, attempt: int | None = None) -> PolledJob:
    """Return a task as a job for an agent."""
    document = tasks.document(connection, row)
    raw = orjson.loads(document.as_run)
    spec = load_task_spec(raw)
    assert isinstance(spec, TrainingTaskSpec), "only training tasks are offered"
    number = attempt or row.attempts + 1
    offer = OfferRow("", number, row.slot_class, row.id, row.workflow_id, row.kind, row.name, "", "")
    return PolledJob(
        id=row.id,
        model_name=spec.model.source.identifier,
        dataset_path=dataset_path(spec),
        config=_config_of(spec),
        total_epochs=max(1, round(spec.training.num_train_epochs)),
        total_steps=spec.training.max_steps,
        created_at=to_datetime(row.created_at),
        name=row.name,
        kind=row.kind,
        spec=raw,
        inputs=orjson.loads(document.inputs),
        attempt=number,
        resume=resume.for_offers(connection, [offer]).get(row.id),
    )


def _state(connection: Connection, agent: WorkerRow, now: float) -> WorkerState:
    # A polling agent is present by definition; only its slots limit how many jobs it gets.
    slots = worker_state.capabilities(agent.capabilities).slots
    snapshot = FleetSnapshot(now, {agent.id: {str(name): count for name, count in slots.items()}})
    return cluster_state.state_of(connection, snapshot, agent)


def _config_of(spec: TrainingTaskSpec) -> dict[str, Any]:
    """Return the configuration of a job for an agent that does not read our specs.

    Fields with two spellings are given in both. Fields that the protocol lacks are omitted; `spec` has them all.
    """
    config: dict[str, Any] = {
        "provider": "local",
        "model": _model(spec),
        "tokenizer": {"name": spec.model.source.identifier, "trust_remote_code": spec.model.trust_remote_code},
        "training": _training(spec),
        "data": _data(spec),
        "seed": spec.training.seed,
    }
    if isinstance(spec, LoraSftSpec):
        lora = _lora(spec)
        config["training"]["lora_config"] = {**lora, "lora_alpha": lora["alpha"], "lora_dropout": lora["dropout"]}
        config["lora"] = lora
    if spec.predictions is not None:
        known = spec.predictions.model_dump(mode="json")
        names = ("enabled", "sample_count", "sample_frequency")
        config["predictions"] = {name: known[name] for name in names if name in known}
    return {name: _without_null(part) for name, part in config.items()}


def dataset_path(spec: TrainingTaskSpec) -> str:
    """Return the location of the rows: a Hub id or a path; empty for rows inside the spec."""
    source = spec.data.source
    hub = source.kind == "hub" and not source.value.startswith((".", "/", "hf://"))
    return f"hf://{source.value}" if hub else source.value


def _model(spec: TrainingTaskSpec) -> dict[str, Any]:
    loading = spec.model.transformers
    quantized = spec.quantized
    return {
        "name": spec.model.source.identifier,
        "revision": spec.model.source.revision,
        "trust_remote_code": spec.model.trust_remote_code,
        "torch_dtype": loading.dtype,
        "device_map": loading.device_map,
        "quantization": None if quantized is None else ("4bit" if quantized.load_in_4bit else "8bit"),
    }


def _training(spec: TrainingTaskSpec) -> dict[str, Any]:
    block, quantized = spec.training, spec.quantized
    evaluates = block.eval_strategy if spec.data.eval is not None else "no"
    return {
        "method": "sft",
        "use_lora": isinstance(spec, LoraSftSpec),
        "num_epochs": block.num_train_epochs,
        "num_train_epochs": block.num_train_epochs,
        "max_steps": block.max_steps,
        "batch_size": block.batch_size,
        "per_device_train_batch_size": block.batch_size,
        "eval_batch_size": block.eval_batch_size,
        "per_device_eval_batch_size": block.eval_batch_size,
        "gradient_accumulation_steps": block.gradient_accumulation_steps,
        "learning_rate": block.learning_rate,
        "lr_scheduler_type": block.lr_scheduler_type,
        "warmup_steps": block.warmup_steps,
        "warmup_ratio": block.warmup_ratio or None,
        "weight_decay": block.weight_decay,
        "max_grad_norm": block.max_grad_norm,
        "optim": block.optim,
        "bf16": block.bf16,
        "fp16": block.fp16,
        "packing": block.packing,
        "gradient_checkpointing": block.gradient_checkpointing,
        "max_length": block.max_seq_length,
        "logging_steps": block.logging_steps,
        "save_strategy": block.save_strategy,
        "save_steps": block.save_steps,
        "save_total_limit": block.save_total_limit,
        "evaluation_strategy": evaluates,
        "eval_strategy": evaluates,
        "eval_steps": block.evaluation_steps if evaluates == "steps" else None,
        "dataloader_num_workers": block.dataloader_num_workers,
        "quantization": None
        if quantized is None
        else {
            "load_in_4bit": quantized.load_in_4bit,
            "load_in_8bit": quantized.load_in_8bit,
            "bnb_4bit_quant_type": quantized.quant_type,
            "bnb_4bit_use_double_quant": quantized.double_quant,
            "bnb_4bit_compute_dtype": quantized.compute_dtype,
        },
    }


def _data(spec: TrainingTaskSpec) -> dict[str, Any]:
    shape, eval_data = spec.data.shape, spec.data.eval
    named = {
        "text": {"text_field": shape.text},
        "pair": {"prompt_column": shape.prompt, "response_column": shape.response},
        "messages": {"messages_field": shape.messages},
        "auto": {"text_field": "text"},
    }
    return {
        "strategy": "standard",
        **named[shape.kind],
        "max_seq_length": spec.training.max_seq_length,
        "max_samples": spec.data.max_samples,
        "split": spec.data.split,
        "eval_split": None if eval_data is None else eval_data.fraction,
    }


def _lora(spec: LoraSftSpec) -> dict[str, Any]:
    block = spec.lora
    targets: Any = block.target_modules if block.target_modules == "all-linear" else list(block.target_modules)
    return {
        "r": block.r,
        "alpha": block.alpha,
        "dropout": block.dropout,
        "target_modules": targets,
        "bias": block.bias,
        "task_type": block.task_type,
    }


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(part) for name, part in value.items() if part is not None}
    return value
