"""What the kinds that train a model have in common, and of them `sft`, `lora_sft` and `ppo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from tunefleet.spec.options.adapter import LoraSpec, QuantizationSpec, quantized
from tunefleet.spec.options.checkpoint import CheckpointLoadSpec, CheckpointSpec, pointer_of
from tunefleet.spec.options.data import TrainingData
from tunefleet.spec.options.devices import DevicesSpec
from tunefleet.spec.options.generation import GenerationSpec, RewardModelSpec
from tunefleet.spec.options.model import AttentionName, ModelSpec
from tunefleet.spec.options.policy import EvaluateSpec, PredictionsSpec, ShardSpec
from tunefleet.spec.options.preference import PpoTrainingSpec
from tunefleet.spec.options.preferred import PpoData
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.rows import RowsSpec
from tunefleet.spec.options.trainer import NAMES, OURS, TrainerName, feature_of, is_function, trainer_faults
from tunefleet.spec.options.training_options import CommonTrainingSpec, LoraTrainingSpec, TrainingSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults, model_faults, training_faults
from tunefleet.spec.tasks.federated_training import FederatedTrainingSpec, federation_faults
from tunefleet.spec.tasks.processes import devices_of, process_count, process_faults


class ModelTrainingSpec(BaseTaskSpec):
    """What every kind has that trains a model."""

    smallest_batch: ClassVar[int] = 1
    """Rows that a forward pass needs."""
    spans: ClassVar[bool] = True

    trainer: TrainerName = OURS
    """Whose code trains: `trl`, `unsloth`, `axolotl`, `llamafactory`, the name of an installed plugin, or a function as
    `module:function` (needs a worker that was started with `--allow-code`)."""
    model: ModelSpec
    """Which model is trained."""
    data: RowsSpec
    """What it is trained on."""
    training: CommonTrainingSpec = Field(default_factory=CommonTrainingSpec)
    """How it is trained."""
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
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
        """Whether the model's own code, or a trainer that the document chooses, is run."""
        return self.model.trust_remote_code or is_function(self.trainer)

    @property
    def environments(self) -> tuple[str, ...]:
        """That of the trainer, where it is one of those that have an environment of their own."""
        return (self.trainer,) if self.trainer in NAMES and self.trainer != OURS else ()

    @property
    def features(self) -> tuple[str, ...]:
        """The trainer, where another package brings it."""
        return () if self.trainer in NAMES or is_function(self.trainer) else (feature_of(self.trainer),)

    @property
    def model_identifier(self) -> str | None:
        """The model that is trained."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the training takes; a CPU cannot train in fp16."""
        found = devices_of(self.resources, self.training)
        return replace(found, optional=False, cause="training.fp16") if found.optional and self.fp16 else found

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
        return pointer_of(self.checkpoint.load)

    @property
    def attention(self) -> AttentionName | None:
        """The attention kernel that was asked for, wherever it was written."""
        loading = self.model.transformers
        asked: AttentionName | None = loading.attn_implementation or self.training.attn_implementation
        return "flash_attention_2" if loading.use_flash_attention_2 else asked

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter that is trained; None if all weights are."""
        return None

    @property
    def product(self) -> str:
        """The folder that the training leaves; as `.tar.gz`, too, where that is asked for."""
        return _product(adapter=self.adapter is not None)

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the base model is quantised, wherever it was written; None if it is not."""
        return None

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Tell whether an adapter is trained, from blocks as `faults` takes them."""
        del blocks
        return False

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the training leaves."""
        product = _product(adapter=cls.trains_adapter(blocks))
        return (*ALWAYS_LEFT, product, f"{product}.tar.gz", "checkpoints", "artifacts/checkpoints")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        whole = not cls.trains_adapter(blocks)
        trainer = trainer_faults(cls.model_fields, blocks)
        found = [*super().faults(blocks), *model_faults(blocks, whole=whole), *process_faults(blocks)]
        return [*found, *node_faults(blocks), *trainer]


def _product(*, adapter: bool) -> str:
    return "final_lora" if adapter else "final_model"


class FederableTaskSpec(ModelTrainingSpec):
    """What the kinds have whose adapters a federation can train."""

    federation: FederatedTrainingSpec | None = None
    """Train it as a federation: in parts, each on its own rows, whose adapters are averaged as they train."""
    shard: ShardSpec | None = None
    """Which part of a federation this task is; the server writes it."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *federation_faults(blocks)]


class TrainingTaskSpec(ModelTrainingSpec):
    """What both supervised trainings have."""

    data: TrainingData
    """What it is trained on."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """How it is trained."""
    evaluate: EvaluateSpec = Field(default_factory=EvaluateSpec)
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


class LoraSftSpec(TrainingTaskSpec, FederableTaskSpec):
    """`taskType: lora_sft`: trains a LoRA adapter on a frozen model."""

    task_type: Literal["lora_sft"] = Field(default="lora_sft", alias="taskType")
    """`lora_sft`"""
    training: LoraTrainingSpec = Field(default_factory=LoraTrainingSpec)
    """How it is trained."""
    lora: LoraSpec = Field(default_factory=LoraSpec)
    """The adapter."""
    quantization: QuantizationSpec | None = None
    """The frozen model in fewer bits."""

    @property
    def adapter(self) -> LoraSpec:
        """The adapter that is trained."""
        return self.lora

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the base model is quantised, wherever it was written; None if it is not."""
        return quantized(self.model.transformers, self.quantization)

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Tell whether an adapter is trained: always."""
        del blocks
        return True


class AdaptableTaskSpec(ModelTrainingSpec):
    """What the kinds have that train an adapter if there is a block for it, else all weights."""

    lora: LoraSpec | None = None
    """The adapter; without it all weights are trained."""
    quantization: QuantizationSpec | None = None
    """With `lora`: the frozen model in fewer bits."""

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter that is trained; None if all weights are."""
        return self.lora

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the base model is quantised, wherever it was written; None if it is not."""
        return quantized(self.model.transformers, self.quantization)

    @classmethod
    def trains_adapter(cls, blocks: Mapping[str, Any]) -> bool:
        """Tell whether an adapter is trained, from blocks as `faults` takes them."""
        return blocks.get("lora") is not None

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        bits: QuantizationSpec | None = blocks.get("quantization")
        if bits is not None and blocks.get("lora") is None and (bits.load_in_4bit or bits.load_in_8bit):
            found.append(("quantization", "quantised weights cannot be trained whole", "add a lora block"))
        return found


class PpoSpec(AdaptableTaskSpec):
    """`taskType: ppo`: trains a model by a reward for its answers."""

    task_type: Literal["ppo"] = Field(default="ppo", alias="taskType")
    """`ppo`"""
    data: PpoData
    """The prompts."""
    training: PpoTrainingSpec = Field(default_factory=PpoTrainingSpec)
    """How it is trained."""
    reward_model: RewardModelSpec
    """What judges the answers."""
    generation: GenerationSpec = Field(default_factory=GenerationSpec)
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
        data: PpoData | None = blocks.get("data")
        if data is not None and data.eval is None and training is not None and training.eval_strategy != "no":
            found.append(("training.eval_strategy", "needs held-out prompts", "add data.eval"))
        if training is None or generation is None or generation.temperature in {None, training.temperature}:
            return found
        if "temperature" in training.model_fields_set:
            found.append(("training.temperature", "contradicts generation.temperature", "leave one of them out"))
        return found


_AT: Final = "resources.nodes"
_FULL: Final = "write parallelism: ddp, of which the first node writes the whole checkpoint, or train on one node"


def node_faults(blocks: dict[str, Any]) -> Faults:
    """Find what does not go with several nodes; `blocks` as `faults` of a task kind has them."""
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
            f"the trainer {trainer} starts its processes by itself, on one worker",
            "leave one of them out",
        ),
        (
            strategy in {"fsdp", "deepspeed"},
            _AT,
            f"with {strategy} each node writes its part of a checkpoint on its own disk, and no other node could go on "
            "from that",
            _FULL,
        ),
        (
            strategy == "device_map",
            _AT,
            "parallelism: device_map is one process, on one worker",
            "leave one of them out",
        ),
        (
            bool(getattr(data, "streaming", False)),
            _AT,
            "a stream has one reader",
            "leave data.streaming out, or train on one node",
        ),
        (
            bool(getattr(checkpoint, "asynchronous", False)),
            _AT,
            "checkpoint.asynchronous is for a training of one process",
            "leave one of them out",
        ),
        (
            getattr(checkpoint, "upload", True) is False,
            _AT,
            "checkpoint.upload: false leaves no checkpoint that all nodes could go on from",
            "leave one of them out",
        ),
        (
            bool(getattr(training, "load_best_model_at_end", False)),
            _AT,
            "the best checkpoint lies on the first node alone: training.load_best_model_at_end cannot load it on all",
            "leave one of them out, and resume from the best checkpoint (`tunefleet resume --from best`)",
        ),
        (
            blocks.get("federation") is not None,
            _AT,
            "a federation spreads the training over workers by itself",
            "leave one of them out",
        ),
        (
            devices.everything,
            _AT,
            "training.allow_multi_gpu takes as many GPUs as a worker has, and nodes need the same number each",
            "write resources.hardware.gpu.count",
        ),
    )
