"""The kinds that train a model: `sft`, `lora_sft`, `dpo`, `ppo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from tunefleet.spec.adapter import LoraSpec, QuantizationSpec
from tunefleet.spec.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.checkpoint import CheckpointLoadSpec, CheckpointSpec
from tunefleet.spec.data import TrainingData
from tunefleet.spec.generation import GenerationSpec, RewardModelSpec
from tunefleet.spec.model import AttentionName, ModelSpec
from tunefleet.spec.policy import EvaluateSpec, PredictionsSpec
from tunefleet.spec.preference import DpoData, DpoTrainingSpec, PpoData, PpoTrainingSpec
from tunefleet.spec.processes import devices_of, process_count, process_faults
from tunefleet.spec.rows import RowsSpec
from tunefleet.spec.together import Faults, model_faults, training_faults
from tunefleet.spec.training import CommonTrainingSpec, LoraTrainingSpec, TrainingSpec


class ModelTrainingSpec(BaseTaskSpec):
    """What every kind has that trains a model."""

    product: ClassVar[str] = "final_model"
    """The folder that it leaves; as `.tar.gz`, too, where that is asked for."""

    model: ModelSpec
    """Which model is trained."""
    data: RowsSpec
    """What it is trained on."""
    training: CommonTrainingSpec = CommonTrainingSpec()
    """How it is trained."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Weights to start from, and how checkpoints are kept."""
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
    def model_identifier(self) -> str | None:
        """The model that is trained."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the training takes."""
        return devices_of(self.resources, self.training)

    def processes_on(self, gpus: int) -> int:
        """Return how many ranks the training has."""
        return process_count(self.resources, self.training, gpus)

    @property
    def bf16(self) -> bool | None:
        """Whether bf16 was asked for or forbidden, wherever it was written."""
        return self._half("bf16")

    @property
    def fp16(self) -> bool | None:
        """Whether fp16 was asked for or forbidden, wherever it was written."""
        return self._half("fp16")

    def _half(self, name: Literal["bf16", "fp16"]) -> bool | None:
        config = self.training.deepspeed
        block = config.get(name) if isinstance(config, dict) else None
        enabled = block.get("enabled") if isinstance(block, dict) else None
        wishes: tuple[Any, ...] = (getattr(self.training, name), getattr(self.model.config, name), enabled)
        return next((wish for wish in wishes if isinstance(wish, bool)), None)

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """The weights to start from, wherever they were named."""
        path = self.training.resume_from_path
        return self.checkpoint.load if path is None else CheckpointLoadSpec(path=path)

    @property
    def start_pointer(self) -> str:
        """The key that names them."""
        if self.training.resume_from_path is not None:
            return "training.resume_from_path"
        load = self.checkpoint.load
        return f"checkpoint.load.{load.place_key if load is not None else 'path'}"

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

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the training leaves."""
        del blocks
        return (*ALWAYS_LEFT, cls.product, f"{cls.product}.tar.gz", "checkpoints", "artifacts/checkpoints")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *model_faults(blocks, whole=cls is not LoraSftSpec), *process_faults(blocks)]


class TrainingTaskSpec(ModelTrainingSpec):
    """What both supervised trainings have."""

    data: TrainingData
    """What it is trained on."""
    training: TrainingSpec = TrainingSpec()
    """How it is trained."""
    evaluate: EvaluateSpec = EvaluateSpec()
    """Sample answers before and after."""
    predictions: PredictionsSpec | None = None
    """Sample answers at the evaluations during the training."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *training_faults(blocks)]


class SftSpec(TrainingTaskSpec):
    """`taskType: sft`: trains all weights."""

    task_type: Literal["sft"] = Field(default="sft", alias="taskType")
    """`sft`"""


class LoraSftSpec(TrainingTaskSpec):
    """`taskType: lora_sft`: trains a LoRA adapter on a frozen model."""

    product: ClassVar[str] = "final_lora"

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


class DpoSpec(ModelTrainingSpec):
    """`taskType: dpo`: trains a model to prefer the better of two answers."""

    task_type: Literal["dpo"] = Field(default="dpo", alias="taskType")
    """`dpo`"""
    data: DpoData
    """What it is trained on."""
    training: DpoTrainingSpec = DpoTrainingSpec()
    """How it is trained."""


class PpoSpec(ModelTrainingSpec):
    """`taskType: ppo`: trains a model by a reward for its answers."""

    task_type: Literal["ppo"] = Field(default="ppo", alias="taskType")
    """`ppo`"""
    data: PpoData
    """The prompts."""
    training: PpoTrainingSpec = PpoTrainingSpec()
    """How it is trained."""
    reward_model: RewardModelSpec
    """What judges the answers."""
    generation: GenerationSpec = GenerationSpec()
    """How answers are drawn."""

    @property
    def requires_code(self) -> bool:
        """Whether a model's own code is run."""
        return self.model.trust_remote_code or self.reward_model.trust_remote_code

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        training: PpoTrainingSpec | None = blocks.get("training")
        generation: GenerationSpec | None = blocks.get("generation")
        found = super().faults(blocks)
        if training is None or generation is None or generation.temperature in {None, training.temperature}:
            return found
        if "temperature" in training.model_fields_set:
            found.append(("training.temperature", "contradicts generation.temperature", "leave one of them out"))
        return found
