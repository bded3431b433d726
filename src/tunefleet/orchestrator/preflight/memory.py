"""Memory estimates of the training tasks in a workflow file, as written and in other variants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tunefleet.analysis.memory import Shape, UnknownShape, estimate, shape_of
from tunefleet.orchestrator.preflight.model_configs import Found
from tunefleet.placement import WorkerState
from tunefleet.schemas.fleet import MemoryForecast, MemoryVariant, TaskForecast
from tunefleet.spec import BaseTaskSpec, LoraSpec, ModelTrainingSpec
from tunefleet.spec.options.model import QuantizationSpec
from tunefleet.spec.options.training_options import CommonTrainingSpec

# Kinds whose memory is that of supervised training; others load a second model or generate answers.
_PLAIN: Final = frozenset({"sft", "lora_sft"})
_POSITIONS: Final = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class _Plan:
    training: CommonTrainingSpec
    adapter: LoraSpec | None
    quantized: QuantizationSpec | None

    @property
    def name(self) -> str:
        if self.adapter is None:
            return "whole"
        if self.quantized is None:
            return "adapter"
        return "adapter_4bit" if self.quantized.load_in_4bit else "adapter_8bit"


def forecast(
    spec: BaseTaskSpec | None,
    placement: TaskForecast,
    fleet: Sequence[WorkerState],
    configuration: Callable[[str, str | None], Found],
) -> MemoryForecast | None:
    """Estimate the memory of a training task; None for a task that trains no model. May block for some seconds.

    Args:
        spec: Spec of the task; None if it has references to other tasks.
        configuration: Returns the configuration of a model and revision, or the reason why there is none.
    """
    if not isinstance(spec, ModelTrainingSpec):
        return None
    if spec.task_type not in _PLAIN:
        return MemoryForecast(unknown="Runs of this kind report their memory use when they start.")
    source = spec.model.source
    found = configuration(source.identifier, source.revision)
    worker = _worker(placement, {each.id: each for each in fleet})
    try:
        return _forecast(spec, found, worker)
    except UnknownShape as why:
        return MemoryForecast(unknown=f"Unknown: {why}. The run reports its memory use when it starts.")
    except (TypeError, ValueError, OverflowError):
        # A configuration that a user uploaded may hold anything.
        return MemoryForecast(unknown="Unknown: its configuration has a value of the wrong type.")


def _forecast(spec: ModelTrainingSpec, config: Found, worker: WorkerState | None) -> MemoryForecast:
    if isinstance(config, str):
        raise UnknownShape(config)
    written = _Plan(spec.training, spec.adapter, spec.quantized)
    compute = _compute(spec, worker)
    length = min(spec.training.max_seq_length, int(config.get(_POSITIONS) or spec.training.max_seq_length))
    shapes = {plan.name: shape_of(config, plan.adapter) for plan in _plans(written)}
    device, available = _available(worker)
    return MemoryForecast(
        variants=tuple(_variant(plan, shapes[plan.name], compute, length, written) for plan in _plans(written)),
        compute=compute,
        trained=shapes[written.name].trained,
        weights=shapes[written.name].weights,
        worker_id=worker.id if worker else None,
        device=device,
        available_bytes=available,
    )


def _plans(written: _Plan) -> Iterator[_Plan]:
    adapter = written.adapter or LoraSpec()
    bits = written.quantized or QuantizationSpec()
    yield replace(written, adapter=None, quantized=None)
    yield replace(written, adapter=adapter, quantized=None)
    for four in (False, True):
        fewer = bits.model_copy(update={"load_in_4bit": four, "load_in_8bit": not four})
        yield replace(written, adapter=adapter, quantized=fewer)


def _variant(plan: _Plan, shape: Shape, compute: str, length: int, written: _Plan) -> MemoryVariant:
    made = estimate(shape, plan, compute, length)
    return MemoryVariant.model_validate(
        {
            "name": plan.name,
            "as_written": plan.name == written.name,
            "total_bytes": made.total_bytes,
            "weights_bytes": made.weights_bytes,
            "gradients_bytes": made.gradients_bytes,
            "optimizer_bytes": made.optimizer_bytes,
            "activations_bytes": made.activations_bytes,
            "logits_bytes": made.logits_bytes,
        }
    )


def _worker(placement: TaskForecast, fleet: Mapping[str, WorkerState]) -> WorkerState | None:
    able = [each.worker_id for each in placement.workers if each.verdict != "never"]
    first = placement.worker_id or next(iter(able), None)
    return fleet.get(first) if first is not None else None


def _compute(spec: ModelTrainingSpec, worker: WorkerState | None) -> str:
    asked = spec.quantized.compute_dtype if spec.quantized is not None else "auto"
    if asked != "auto":
        return asked
    if spec.fp16:
        return "float16"
    gpu = worker is None or bool(worker.gpus)
    return "bfloat16" if spec.bf16 or (gpu and spec.bf16 is not False) else "float32"


def _available(worker: WorkerState | None) -> tuple[str | None, int | None]:
    if worker is None:
        return None, None
    if worker.gpus:
        return "gpu", max(gpu.memory_bytes for gpu in worker.gpus)
    return "cpu", worker.memory_free_bytes or worker.memory_bytes
