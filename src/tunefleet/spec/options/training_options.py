"""`spec.training`: hyperparameters, checkpoints, evaluation and logging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    NaturalFloat,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Share,
    Text,
    many_wrong,
)
from tunefleet.spec.options.devices import DevicesSpec
from tunefleet.spec.options.model import AttentionName
from tunefleet.spec.options.rows import LocalOrUrl

Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]
# Trackers in which runs have a group.
GROUPING_TRACKERS: Final[tuple[Tracker, ...]] = ("wandb", "mlflow")
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]
Optimizer = Literal[
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "adafactor", "sgd"
]
Strategy = Literal["no", "steps", "epoch"]
# Whether the check failed, the key, the message, the hint.
Check = tuple[bool, str, str, str | None]
_A_PATH: Final = "is a path; DeepSpeed must not read or write files of its own"
_SAME = (
    ("train_micro_batch_size_per_gpu", "batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
)


def _trackers(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    # "none" is the Hugging Face value for no trackers.
    return [name for name in names if name != "none"] if isinstance(names, list | tuple) else names


class EarlyStoppingSpec(Block):
    """`training.early_stopping`: stop when the eval loss no longer improves."""

    patience: PositiveInt = 3
    """Number of evaluations without improvement before training stops."""
    threshold: NaturalFloat = 0.0
    """Minimum decrease of the eval loss that counts as an improvement."""


class CommonTrainingSpec(DevicesSpec):
    """The keys of `spec.training` that every training task type has."""

    num_train_epochs: PositiveFloat = 1.0
    """Number of epochs; `max_steps` takes precedence."""
    max_steps: PositiveInt | None = None
    """Maximum number of optimizer steps; overrides `num_train_epochs`."""
    batch_size: PositiveInt = 2
    """Rows per device and forward pass."""
    eval_batch_size: PositiveInt | None = None
    """Rows per device and forward pass in evaluation; default: `batch_size`, at least 8."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes per optimizer step."""
    learning_rate: PositiveFloat = 5e-5
    """Peak learning rate."""
    lr_scheduler_type: Scheduler = "linear"
    """Learning rate schedule."""
    warmup_steps: NaturalInt = 0
    """Warmup steps of the learning rate."""
    warmup_ratio: Share = 0.0
    """Warmup as a fraction of all steps."""
    weight_decay: NaturalFloat = 0.0
    """Weight decay."""
    max_grad_norm: NaturalFloat = 1.0
    """Maximum gradient norm for clipping; 0 disables it."""
    optim: Optimizer | None = None
    """Optimizer; default: fused AdamW if the device supports it."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """Random seed."""
    max_seq_length: PositiveInt = 1024
    """Max sequence length in tokens; longer rows are truncated."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, slower."""
    bf16: bool | None = None
    """Train in bf16; default: on if the hardware supports it."""
    fp16: bool | None = None
    """Train in fp16, which requires a GPU; default: false."""
    attn_implementation: AttentionName | None = None
    """Alias of `model.transformers.attn_implementation`."""
    logging_steps: PositiveInt = 10
    """Steps between logged metric points."""
    save_strategy: Strategy = "steps"
    """When checkpoints are saved."""
    save_steps: PositiveInt = 100
    """Steps between checkpoints, with `save_strategy: steps`."""
    save_total_limit: PositiveInt | None = 2
    """Number of checkpoints to keep; the newest complete and the best one are always kept."""
    save_model: bool = True
    """Deliver the trained model or adapter."""
    eval_strategy: Strategy = "no"
    """When the eval loss is measured during training."""
    eval_steps: PositiveInt | None = None
    """Steps between evaluations, with `eval_strategy: steps`; default: `logging_steps`."""
    load_best_model_at_end: bool = False
    """Deliver the checkpoint with the lowest eval loss."""
    report_to: Annotated[tuple[Tracker, ...], BeforeValidator(_trackers)] = ()
    """Experiment trackers that also receive the metrics; they must be installed on the worker."""
    project: Text | None = None
    """Project name in wandb and trackio, and experiment name in MLflow."""
    group: Text | None = None
    """Group of the run in wandb, and tag `group` in MLflow. The trials of a sweep have its name as their group."""
    dataloader_num_workers: NaturalInt = 0
    """Number of data loader processes."""
    dataset_num_proc: PositiveInt | None = None
    """Number of tokenization processes."""
    resume_from_path: LocalOrUrl | None = None
    """Alias of `checkpoint.load.path`: weights to start from; optimizer state and step count are reset."""

    @model_validator(mode="after")
    def _consistent(self) -> CommonTrainingSpec:
        faults = [(at, message, hint) for failed, at, message, hint in self._checks() if failed]
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """Experiment trackers, from either spelling."""
        return self.report_to

    @property
    def project_name(self) -> str | None:
        """Project in the trackers, from either spelling."""
        return self.project

    def _checks(self) -> tuple[Check, ...]:
        evaluates = self.eval_strategy != "no"
        # TensorBoard writes to a folder and has no projects.
        named = bool({*self.trackers} - {"tensorboard"})
        return (
            (
                self.project is not None and not named,
                "project",
                "has no effect without a tracker that supports projects",
                "add report_to: [wandb], [trackio] or [mlflow], or remove it",
            ),
            (
                self.group is not None and not {*self.trackers} & {*GROUPING_TRACKERS},
                "group",
                "has no effect without a tracker that has groups",
                "add report_to: [wandb] or [mlflow], or remove it",
            ),
            (bool(self.bf16 and self.fp16), "fp16", "cannot be set together with bf16", "remove one of them"),
            (
                self.warmup_steps > 0 and self.warmup_ratio > 0,
                "warmup_ratio",
                "cannot be set together with warmup_steps",
                "remove one of them",
            ),
            (
                self.eval_steps is not None and self.eval_strategy != "steps",
                "eval_steps",
                "has no effect without eval_strategy: steps",
                "add eval_strategy: steps",
            ),
            (
                self.load_best_model_at_end and not evaluates,
                "load_best_model_at_end",
                "requires evaluations during training",
                "add eval_strategy: steps or epoch",
            ),
            (
                self.load_best_model_at_end and evaluates and not self._saves_where_it_evaluates(),
                "load_best_model_at_end",
                "requires a checkpoint at each evaluation",
                "set save_strategy to the value of eval_strategy, and save_steps to a multiple of eval_steps",
            ),
        )

    def _saves_where_it_evaluates(self) -> bool:
        # The best checkpoint can only be kept if each evaluation coincides with a save.
        if self.save_strategy != self.eval_strategy:
            return False
        return self.save_strategy == "epoch" or self.saving_steps % self.evaluation_steps == 0

    @property
    def saving_steps(self) -> int:
        """Steps between checkpoints, from either spelling."""
        return self.save_steps

    @property
    def evaluation_steps(self) -> int:
        """Steps between evaluations, with `eval_strategy: steps`."""
        return self.eval_steps or self.logging_steps


class TrainingSpec(CommonTrainingSpec):
    """`spec.training`: hyperparameters, checkpoints, evaluation and logging."""

    packing: bool = False
    """Pack several rows into one sequence."""
    group_by_length: bool = False
    """Batch rows of similar length: less padding, but a less random order."""
    completion_only_loss: bool | None = None
    """Train only on responses; default: on if the rows have responses."""
    append_eos: bool = True
    """Append the tokenizer's EOS token to answers that do not end with a special token, and train it."""
    liger: bool | None = None
    """Use Liger kernels; default: on if they are installed and the device supports them."""
    neftune_noise_alpha: PositiveFloat | None = None
    """Noise scale on the embeddings (NEFTune)."""
    early_stopping: EarlyStoppingSpec | None = None
    """Stop when the eval loss no longer improves."""

    def _checks(self) -> tuple[Check, ...]:
        return (
            *super()._checks(),
            (self.packing and self.group_by_length, "group_by_length", "has no effect with packing", "remove it"),
            (
                self.early_stopping is not None and self.eval_strategy == "no",
                "early_stopping",
                "requires evaluations during training",
                "add eval_strategy: steps or epoch",
            ),
        )


class LoraTrainingSpec(TrainingSpec):
    """`spec.training` of `lora_sft`; two defaults differ."""

    learning_rate: PositiveFloat = 2e-4
    """Peak learning rate."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, slower."""


def path_keys(config: Any, at: str = "") -> Iterator[str]:
    """Yield the keys of a configuration whose values are paths, which DeepSpeed would read or write.

    Args:
        config: JSON data.
        at: Its dotted path.
    """
    if isinstance(config, dict):
        for key, value in config.items():
            yield from path_keys(value, f"{at}.{key}" if at else str(key))
    elif isinstance(config, list):
        for number, value in enumerate(config):
            yield from path_keys(value, f"{at}.{number}")
    # Any string with a separator counts as a path, whatever its key: DeepSpeed has many such keys.
    elif isinstance(config, str) and (config in {"..", "~"} or "/" in config or "\\" in config):
        yield at


def deepspeed_faults(blocks: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Find values of `training.deepspeed` that contradict `training`; a file is checked when the job starts.

    Args:
        blocks: As passed to `faults` of a task type.
    """
    training: CommonTrainingSpec | None = blocks.get("training")
    config = training.deepspeed if training is not None else None
    if training is None or not isinstance(config, dict):
        return []
    faults: list[tuple[str, str, str | None]] = [
        (f"training.deepspeed.{key}", _A_PATH, "remove it: offloading to disk is not supported")
        for key in path_keys(config)
    ]
    # DeepSpeed has its own copies of these options; "auto" takes the trainer's value.
    for theirs, ours in _SAME:
        given, expected = config.get(theirs, "auto"), getattr(training, ours)
        if given not in ("auto", expected):
            hint = f"use auto, or training.{ours}: {given}"
            faults.append((f"training.deepspeed.{theirs}", f"contradicts training.{ours}: {expected}", hint))
    for name in ("bf16", "fp16"):
        block = config.get(name)
        enabled = block.get("enabled", "auto") if isinstance(block, dict) else "auto"
        asked = getattr(training, name)
        if enabled != "auto" and asked is not None and bool(enabled) != asked:
            at = f"training.deepspeed.{name}.enabled"
            faults.append((at, f"contradicts training.{name}: {str(asked).lower()}", "use auto"))
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, dict) else None
    if stage != "auto" and (isinstance(stage, bool) or stage not in {0, 1, 2, 3}):
        faults.append(("training.deepspeed.zero_optimization", "must have a stage from 0 to 3", "set stage: 2"))
    return faults
