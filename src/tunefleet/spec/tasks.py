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
from tunefleet.spec.processes import process_count
from tunefleet.spec.resources import ResourcesSpec
from tunefleet.spec.together import Faults, output_faults, training_faults
from tunefleet.spec.training import LoraTrainingSpec, TrainingSpec


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
    faults = output_faults(TRAINED_FOLDERS.get(kind), blocks)
    if issubclass(kind, TrainingTaskSpec):
        faults += training_faults(blocks, whole=kind is SftSpec)
    return faults
