"""The base of training task types, and `sft`, `lora_sft` and `ppo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec, CheckpointSpec, pointer_of
from tunefleet.spec.options.data import TrainingData
from tunefleet.spec.options.devices import DevicesSpec
from tunefleet.spec.options.generation import GenerationSpec, RewardModelSpec
from tunefleet.spec.options.model import AttentionName, LoraSpec, ModelSpec, QuantizationSpec, quantized
from tunefleet.spec.options.policy import EvaluateSpec, PredictionsSpec, ShardSpec
from tunefleet.spec.options.preference import PpoTrainingSpec
from tunefleet.spec.options.preference_data import PpoData
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.rows import RowsSpec
from tunefleet.spec.options.trainer import NAMES, OURS, TrainerName, feature_of, is_function, trainer_faults
from tunefleet.spec.options.training_options import CommonTrainingSpec, LoraTrainingSpec, TrainingSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults, model_faults, training_faults
from tunefleet.spec.tasks.federated_training import FederatedTrainingSpec, federation_faults
from tunefleet.spec.tasks.processes import devices_of, process_count, process_faults

_AT: Final = "resources.nodes"
_FULL: Final = "set parallelism: ddp, which saves a complete checkpoint on the first node, or train on one node"


class ModelTrainingSpec(BaseTaskSpec):
    """Keys of every task type that trains a model."""

    smallest_batch: ClassVar[int] = 1
    """Minimum number of rows per forward pass."""
    spans: ClassVar[bool] = True

    trainer: TrainerName = OURS
    """Training library: `trl`, `unsloth`, `axolotl`, `llamafactory`, the name of an installed plugin, or a function as
    `module:function` (requires a worker started with `--allow-code`)."""
    model: ModelSpec
    """The base model."""
    data: RowsSpec
    """Training data."""
    training: CommonTrainingSpec = Field(default_factory=CommonTrainingSpec)
    """Hyperparameters."""
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    """Initial weights, and how checkpoints are stored."""
    on_oom: Literal["fail", "halve_batch"] = "halve_batch"
    """If memory runs out: fail, or resume from the last checkpoint with half the batch size and twice the gradient
    accumulation, which keeps the effective batch size."""
    on_nan: Literal["stop", "rollback", "ignore"] = "stop"
    """If the loss is NaN or diverges: stop with an error, roll back to the last valid checkpoint with half the learning
    rate, or continue."""
    on_stall: Literal["keep", "restart", "fail"] = "keep"
    """If the job writes no journal record for `limits.stall_after_s`: only report it, restart from the newest
    checkpoint, or fail."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model or a trainer function is run."""
        return self.model.trust_remote_code or is_function(self.trainer)

    @property
    def environments(self) -> tuple[str, ...]:
        """That of the trainer, if it has its own environment."""
        return (self.trainer,) if self.trainer in NAMES and self.trainer != OURS else ()

    @property
    def features(self) -> tuple[str, ...]:
        """The feature of a trainer plugin."""
        return () if self.trainer in NAMES or is_function(self.trainer) else (feature_of(self.trainer),)

    @property
    def model_identifier(self) -> str | None:
        """The base model."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses; fp16 requires a GPU."""
        found = devices_of(self.resources, self.training)
        # Training in fp16 requires a GPU, so a worker without one is not eligible.
        return replace(found, optional=False, cause="training.fp16") if found.optional and self.fp16 else found

    def processes_on(self, gpus: int) -> int:
        """Return the number of ranks."""
        return process_count(self.resources, self.training, gpus)

    @property
    def bf16(self) -> bool | None:
        """Whether bf16 is requested or disabled, from any spelling."""
        return self._half("bf16")

    @property
    def fp16(self) -> bool | None:
        """Whether fp16 is requested or disabled, from any spelling."""
        return self._half("fp16")

    # Three places can set the precision; the first explicit one applies.
    def _half(self, name: Literal["bf16", "fp16"]) -> bool | None:
        config = self.training.deepspeed
        block = config.get(name) if isinstance(config, dict) else None
        enabled = block.get("enabled") if isinstance(block, dict) else None
        given: tuple[Any, ...] = (getattr(self.training, name), getattr(self.model.config, name), enabled)
        return next((value for value in given if isinstance(value, bool)), None)

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """Weights to start from, from either spelling."""
        path = self.training.resume_from_path
        return self.checkpoint.load if path is None else CheckpointLoadSpec(path=path)

    @property
    def start_pointer(self) -> str:
        """The key that names these weights."""
        if self.training.resume_from_path is not None:
            return "training.resume_from_path"
        return pointer_of(self.checkpoint.load)

    @property
    def attention(self) -> AttentionName | None:
        """The requested attention implementation, from any spelling."""
        loading = self.model.transformers
        asked: AttentionName | None = loading.attn_implementation or self.training.attn_implementation
        return "flash_attention_2" if loading.use_flash_attention_2 else asked

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter to train; `None` for a full fine-tune."""
        return None

    @property
    def product(self) -> str:
        """Name of the output folder, and of its `.tar.gz` if requested."""
        return _product(adapter=self.adapter is not None)

    @property
    def quantized(self) -> QuantizationSpec | None:
        """Quantization of the base model, from either spelling; `None` if not quantized."""
        return None

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Return whether an adapter is trained; `blocks` as passed to `faults`."""
        del blocks
        return False

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        product = _product(adapter=cls.trains_adapter(blocks))
        return (*ALWAYS_LEFT, product, f"{product}.tar.gz", "checkpoints", "artifacts/checkpoints")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        whole = not cls.trains_adapter(blocks)
        trainer = trainer_faults(cls.model_fields, blocks)
        found = [*super().faults(blocks), *model_faults(blocks, whole=whole), *process_faults(blocks)]
        return [*found, *node_faults(blocks), *trainer]


def _product(*, adapter: bool) -> str:
    return "final_lora" if adapter else "final_model"


class FederableTaskSpec(ModelTrainingSpec):
    """Keys of task types that support federated training."""

    federation: FederatedTrainingSpec | None = None
    """Federated training: parts train on their own rows, and their adapters are averaged during training."""
    shard: ShardSpec | None = None
    """The part of a federation that this task is; set by the server."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *federation_faults(blocks)]


class TrainingTaskSpec(ModelTrainingSpec):
    """Keys of both supervised fine-tuning types."""

    data: TrainingData
    """Training data."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """Hyperparameters."""
    evaluate: EvaluateSpec = Field(default_factory=EvaluateSpec)
    """Sample answers before and after training."""
    predictions: PredictionsSpec | None = None
    """Sample answers during training."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *training_faults(blocks)]


class SftSpec(TrainingTaskSpec):
    """`taskType: sft`: full supervised fine-tune."""

    task_type: Literal["sft"] = Field(default="sft", alias="taskType")
    """`sft`"""


class LoraSftSpec(TrainingTaskSpec, FederableTaskSpec):
    """`taskType: lora_sft`: supervised fine-tune of a LoRA adapter on a frozen model."""

    task_type: Literal["lora_sft"] = Field(default="lora_sft", alias="taskType")
    """`lora_sft`"""
    training: LoraTrainingSpec = Field(default_factory=LoraTrainingSpec)
    """Hyperparameters."""
    lora: LoraSpec = Field(default_factory=LoraSpec)
    """The LoRA adapter."""
    quantization: QuantizationSpec | None = None
    """Quantization of the frozen model."""

    @property
    def adapter(self) -> LoraSpec:
        """The adapter to train."""
        return self.lora

    @property
    def quantized(self) -> QuantizationSpec | None:
        """Quantization of the base model, from either spelling; `None` if not quantized."""
        return quantized(self.model.transformers, self.quantization)

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Return whether an adapter is trained: always."""
        del blocks
        return True


class AdaptableTaskSpec(ModelTrainingSpec):
    """Keys of task types that train an adapter with a `lora` block, else all weights."""

    lora: LoraSpec | None = None
    """The LoRA adapter; without it all weights are trained."""
    quantization: QuantizationSpec | None = None
    """With `lora`: quantization of the frozen model."""

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter to train; `None` for a full fine-tune."""
        return self.lora

    @property
    def quantized(self) -> QuantizationSpec | None:
        """Quantization of the base model, from either spelling; `None` if not quantized."""
        return quantized(self.model.transformers, self.quantization)

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Return whether an adapter is trained; `blocks` as passed to `faults`."""
        return blocks.get("lora") is not None

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        bits: QuantizationSpec | None = blocks.get("quantization")
        if bits is not None and blocks.get("lora") is None and (bits.load_in_4bit or bits.load_in_8bit):
            found.append(("quantization", "quantized weights cannot be fully fine-tuned", "add a lora block"))
        return found


class PpoSpec(AdaptableTaskSpec):
    """`taskType: ppo`: trains a model with a reward model (PPO)."""

    task_type: Literal["ppo"] = Field(default="ppo", alias="taskType")
    """`ppo`"""
    data: PpoData
    """The prompts."""
    training: PpoTrainingSpec = Field(default_factory=PpoTrainingSpec)
    """Hyperparameters."""
    reward_model: RewardModelSpec
    """The reward model."""
    generation: GenerationSpec = Field(default_factory=GenerationSpec)
    """Sampling parameters."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of a model is run."""
        return self.model.trust_remote_code or self.reward_model.trust_remote_code

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        training: PpoTrainingSpec | None = blocks.get("training")
        generation: GenerationSpec | None = blocks.get("generation")
        found = super().faults(blocks)
        data: PpoData | None = blocks.get("data")
        if data is not None and data.eval is None and training is not None and training.eval_strategy != "no":
            found.append(("training.eval_strategy", "requires eval prompts", "add data.eval"))
        if training is None or generation is None or generation.temperature in {None, training.temperature}:
            return found
        if "temperature" in training.model_fields_set:
            found.append(("training.temperature", "contradicts generation.temperature", "remove one of them"))
        return found


def node_faults(blocks: dict[str, Any]) -> Faults:
    """Find options that multi-node training does not support; `blocks` as passed to `faults` of a task type."""
    resources: ResourcesSpec | None = blocks.get("resources")
    training: DevicesSpec | None = blocks.get("training")
    if resources is None or training is None or resources.most_nodes == 1:
        return []
    return [(at, message, hint) for failed, at, message, hint in _checks(resources, training, blocks) if failed]


def _checks(
    resources: ResourcesSpec, training: DevicesSpec, blocks: dict[str, Any]
) -> tuple[tuple[bool, str, str, str], ...]:
    devices = devices_of(resources, training)
    strategy = training.strategy(max(2, process_count(resources, training, devices.count)))
    trainer = blocks.get("trainer")
    checkpoint, data = blocks.get("checkpoint"), blocks.get("data")
    return (
        (
            trainer not in {None, OURS},
            _AT,
            f"the trainer {trainer} starts its own processes, on one worker only",
            "remove one of them",
        ),
        (
            strategy in {"fsdp", "deepspeed"},
            _AT,
            f"with {strategy} each node writes its shard of a checkpoint to its own disk, from which no other node "
            "can resume",
            _FULL,
        ),
        (
            strategy == "device_map",
            _AT,
            "parallelism: device_map runs in one process, on one worker",
            "remove one of them",
        ),
        (
            bool(getattr(data, "streaming", False)),
            _AT,
            "streaming supports one reader only",
            "remove data.streaming, or train on one node",
        ),
        (
            bool(getattr(checkpoint, "asynchronous", False)),
            _AT,
            "checkpoint.asynchronous is only for single-process training",
            "remove one of them",
        ),
        (
            getattr(checkpoint, "upload", True) is False,
            _AT,
            "checkpoint.upload: false leaves no checkpoint from which all nodes can resume",
            "remove one of them",
        ),
        (
            bool(getattr(training, "load_best_model_at_end", False)),
            _AT,
            "the best checkpoint is only on the first node: training.load_best_model_at_end cannot load it on all",
            "remove one of them, and resume from the best checkpoint (`tunefleet resume --from best`)",
        ),
        (
            blocks.get("federation") is not None,
            _AT,
            "a federation already distributes the training across workers",
            "remove one of them",
        ),
        (
            devices.everything,
            _AT,
            "training.allow_multi_gpu uses all GPUs of a worker, but every node needs the same number",
            "set resources.hardware.gpu.count",
        ),
    )
