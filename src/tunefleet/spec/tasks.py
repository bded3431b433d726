"""The task kinds: which blocks each one takes, and which blocks must fit together."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from tunefleet.spec.adapter import LoraSpec, QuantizationSpec
from tunefleet.spec.base import Block, NotBool, many_wrong
from tunefleet.spec.data import TrainingData
from tunefleet.spec.echo import EchoData
from tunefleet.spec.model import AttentionName, ModelSpec
from tunefleet.spec.policy import CheckpointSpec, EvaluateSpec, LimitsSpec, OutputSpec, PredictionsSpec, RetrySpec
from tunefleet.spec.processes import process_count, process_faults
from tunefleet.spec.resources import ResourcesSpec
from tunefleet.spec.training import LoraTrainingSpec, TrainingSpec

API_VERSIONS: Final = ("tunefleet/v1", "mloc/v1", "flowmesh/v1")

Faults = list[tuple[str, str, str | None]]


class BaseTaskSpec(Block):
    """What every task kind has."""

    task_type: str = Field(alias="taskType")
    """The task kind."""
    resources: ResourcesSpec = ResourcesSpec()
    """What a worker must have."""
    output: OutputSpec = OutputSpec()
    """What is delivered."""
    retry: RetrySpec = RetrySpec()
    """How often a failed task is tried."""
    priority: Annotated[int, Field(ge=-100, le=100), NotBool] = 0
    """Among waiting tasks a higher one goes first; waiting raises it slowly."""
    limits: LimitsSpec = LimitsSpec()
    """How long the task may take."""
    on_lost: Literal["replace", "wait"] = "replace"
    """When the worker does not come back: place the task anew from its last uploaded checkpoint, or wait."""

    @property
    def requires_code(self) -> bool:
        """Whether the task runs code that comes with the document or the model (needs `--allow-code`)."""
        return False

    @property
    def processes(self) -> int:
        """How many processes the task's job has."""
        return 1

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        faults = across(type(self), {name: getattr(self, name) for name in type(self).model_fields})
        if faults:
            raise many_wrong(faults)
        return self


class EchoSpec(BaseTaskSpec):
    """`taskType: echo`: gives its data back; for trying out a fleet."""

    task_type: Literal["echo"] = Field(default="echo", alias="taskType")
    """`echo`"""
    data: EchoData = EchoData()
    """What to give back."""


class TrainingTaskSpec(BaseTaskSpec):
    """What both training kinds have."""

    model: ModelSpec
    """Which model is trained."""
    data: TrainingData
    """What it is trained on."""
    training: TrainingSpec = TrainingSpec()
    """How it is trained."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Weights to start from, and how checkpoints are kept."""
    evaluate: EvaluateSpec = EvaluateSpec()
    """Sample answers before and after."""
    predictions: PredictionsSpec | None = None
    """Sample answers at the evaluations during the training."""
    on_oom: Literal["fail", "halve_batch"] = "halve_batch"
    """When the memory does not suffice: fail, or go on from the last checkpoint with half the batch and twice the
    accumulation, so that the effective batch stays."""
    on_nan: Literal["stop", "rollback", "ignore"] = "stop"
    """When the loss is not a number or diverges: stop with an error, go back to the last good checkpoint with half the
    learning rate, or go on."""
    on_stall: Literal["keep", "restart", "fail"] = "keep"
    """When the job writes no journal record for `limits.stall_after_s`: only show it, restart it from its newest
    checkpoint, or fail."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run."""
        return self.model.trust_remote_code

    @property
    def processes(self) -> int:
        """How many ranks the training has."""
        return process_count(self.resources, self.training)

    @property
    def attention(self) -> AttentionName | None:
        """The attention kernel that was asked for, wherever it was written."""
        loading = self.model.transformers
        asked: AttentionName | None = loading.attn_implementation or self.training.attn_implementation
        return "flash_attention_2" if loading.use_flash_attention_2 else asked

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the base model is quantised, wherever it was written; None if it is not."""
        return None


class SftSpec(TrainingTaskSpec):
    """`taskType: sft`: trains all weights."""

    task_type: Literal["sft"] = Field(default="sft", alias="taskType")
    """`sft`"""


class LoraSftSpec(TrainingTaskSpec):
    """`taskType: lora_sft`: trains a LoRA adapter on a frozen model."""

    task_type: Literal["lora_sft"] = Field(default="lora_sft", alias="taskType")
    """`lora_sft`"""
    training: LoraTrainingSpec = LoraTrainingSpec()
    """How it is trained."""
    lora: LoraSpec = LoraSpec()
    """The adapter."""
    quantization: QuantizationSpec | None = None
    """The frozen model in fewer bits."""

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the base model is quantised, wherever it was written; None if it is not."""
        loading, block = self.model.transformers, self.quantization
        if block is not None and (block.load_in_4bit or block.load_in_8bit):
            return block
        if not (loading.load_in_4bit or loading.load_in_8bit):
            return None
        base = block or QuantizationSpec()
        return base.model_copy(update={"load_in_4bit": loading.load_in_4bit, "load_in_8bit": loading.load_in_8bit})


TaskSpec = SftSpec | LoraSftSpec | EchoSpec

ALWAYS_DELIVERED: Final = ("responses.json", "logs")
"""What every task leaves: its result and its log."""

TRAINED_FOLDERS: Final[dict[type[BaseTaskSpec], str]] = {SftSpec: "final_model", LoraSftSpec: "final_lora"}
"""What a training leaves beside that; as `.tar.gz`, too, where it is asked for."""

TASK_KINDS: Final[dict[str, type[SftSpec] | type[LoraSftSpec] | type[EchoSpec]]] = {
    "sft": SftSpec,
    "lora_sft": LoraSftSpec,
    "echo": EchoSpec,
}


def across(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    """Find faults between blocks.

    Args:
        kind: The task kind.
        blocks: Attribute name → block, without those that are wrong in themselves; so one pass reports all faults.

    Returns:
        Faults as `(path below spec, message, hint)`.
    """
    faults = _output_faults(kind, blocks)
    if issubclass(kind, TrainingTaskSpec):
        faults += [
            *_held_out_faults(blocks),
            *_streaming_faults(blocks),
            *_checkpoint_faults(blocks),
            *_loading_faults(kind, blocks),
        ]
        faults += process_faults(blocks)
    return faults


def _output_faults(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    output: OutputSpec | None = blocks.get("output")
    training: TrainingSpec | None = blocks.get("training")
    trained = TRAINED_FOLDERS.get(kind)
    made = [trained, f"{trained}.tar.gz"] if trained else []
    known = [*ALWAYS_DELIVERED, *made]
    faults: Faults = []
    for index, name in enumerate(output.artifacts if output is not None else ()):
        where = f"output.artifacts.{index}"
        if name not in known:
            faults.append((where, f"{name!r} is not left by this task kind", f"it leaves {', '.join(known)}"))
        elif name in made and training is not None and not training.save_model:
            faults.append((where, f"{name!r} is not left with training.save_model: false", "leave one of them out"))
    return faults


def _held_out_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    evaluate: EvaluateSpec | None = blocks.get("evaluate")
    hint = "add data.eval with a split, a path or a fraction"
    faults: Faults = []
    if data is not None and data.eval is None:
        if training is not None and training.eval_strategy != "no":
            faults.append(("training.eval_strategy", "needs held-out rows", hint))
        if evaluate is not None and evaluate.answers:
            faults.append(("evaluate.answers", "needs held-out rows", hint))
    predictions: PredictionsSpec | None = blocks.get("predictions")
    if predictions is not None and predictions.enabled and data is not None and training is not None:
        faults += _prediction_faults(predictions, data, training, hint)
    if data is not None and training is not None and training.completion_only_loss and data.shape.kind == "text":
        faults.append(
            (
                "training.completion_only_loss",
                "needs rows with a response, and these are plain text",
                "name prompt_column and response_column, or messages_field",
            )
        )
    return faults


def _prediction_faults(predictions: PredictionsSpec, data: TrainingData, training: TrainingSpec, hint: str) -> Faults:
    if data.eval is None:
        return [("predictions", "needs held-out rows", hint)]
    if predictions.sample_frequency == "epoch":
        where = "predictions.sample_frequency"
        return [(where, "a stream has no epochs", "write eval or a number")] if data.streaming else []
    if training.eval_strategy == "no":
        more = "add training.eval_strategy: steps or epoch, or write sample_frequency: epoch"
        return [("predictions", "needs evaluations during the training", more)]
    return []


def _checkpoint_faults(blocks: dict[str, Any]) -> Faults:
    checkpoint: CheckpointSpec | None = blocks.get("checkpoint")
    resources: ResourcesSpec | None = blocks.get("resources")
    if checkpoint is None or resources is None or not checkpoint.asynchronous or resources.processes == 1:
        return []
    return [("checkpoint.asynchronous", "is for a training of one process", "leave it out, or resources.processes")]


def _streaming_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    if training is None or data is None or not data.streaming:
        return []
    leave = "leave it out, or leave data.streaming out"
    # A stream has no length: no epochs, and no share of it.
    checks = (
        (training.max_steps is None, "training.max_steps", "is needed with data.streaming", "say how many steps"),
        (training.save_strategy == "epoch", "training.save_strategy", "a stream has no epochs", "write steps"),
        (training.eval_strategy == "epoch", "training.eval_strategy", "a stream has no epochs", "write steps"),
        (training.dataloader_num_workers > 1, "training.dataloader_num_workers", "a stream has one reader", "write 1"),
        (training.dataset_num_proc is not None, "training.dataset_num_proc", "has no effect with streaming", leave),
    )
    return [(at, message, hint) for failed, at, message, hint in checks if failed]


def _loading_faults(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    model: ModelSpec | None = blocks.get("model")
    training: TrainingSpec | None = blocks.get("training")
    quantization: QuantizationSpec | None = blocks.get("quantization")
    if model is None:
        return []
    loading = model.transformers
    faults: Faults = []
    asked = "flash_attention_2" if loading.use_flash_attention_2 else loading.attn_implementation
    if asked and training is not None and training.attn_implementation not in {None, asked}:
        faults.append(("training.attn_implementation", "contradicts model.transformers", "leave one of them out"))
    for name in ("load_in_4bit", "load_in_8bit"):
        if not getattr(loading, name):
            continue
        if kind is SftSpec:
            hint = "use `taskType: lora_sft`, which trains an adapter on the quantised model"
            faults.append((f"model.transformers.{name}", "quantised weights cannot be trained whole", hint))
        elif quantization is not None and _other_width(quantization, name):
            faults.append((f"model.transformers.{name}", "contradicts quantization", "leave one of them out"))
    return faults


def _other_width(quantization: QuantizationSpec, name: str) -> bool:
    return quantization.load_in_8bit if name == "load_in_4bit" else quantization.load_in_4bit
