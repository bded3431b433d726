"""`spec.training`: how long, how fast and with what a model is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]
Optimizer = Literal[
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "adafactor", "sgd"
]
Strategy = Literal["no", "steps", "epoch"]
Check = tuple[bool, str, str, str | None]
"""Whether it is wrong, the key, the message, the hint."""


def _trackers(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    return [name for name in names if name != "none"] if isinstance(names, list | tuple) else names


class EarlyStoppingSpec(Block):
    """`training.early_stopping`: stop when the held-out loss no longer falls."""

    patience: PositiveInt = 3
    """Evaluations without an improvement."""
    threshold: NaturalFloat = 0.0
    """A smaller fall of the loss does not count as one."""


class CommonTrainingSpec(DevicesSpec):
    """The keys of `spec.training` that every training kind has."""

    num_train_epochs: PositiveFloat = 1.0
    """Passes over the rows; `max_steps` has precedence."""
    max_steps: PositiveInt | None = None
    """Optimizer steps; ends the training whatever `num_train_epochs` says."""
    batch_size: PositiveInt = 2
    """Rows a device and forward pass."""
    eval_batch_size: PositiveInt | None = None
    """Rows a device and forward pass of an evaluation; by default `batch_size`, and at least 8."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes an optimizer step."""
    learning_rate: PositiveFloat = 5e-5
    """Highest learning rate."""
    lr_scheduler_type: Scheduler = "linear"
    """Shape of the learning rate."""
    warmup_steps: NaturalInt = 0
    """Steps over which the learning rate rises."""
    warmup_ratio: Share = 0.0
    """The same as a part of all steps."""
    weight_decay: NaturalFloat = 0.0
    """Decay of the weights."""
    max_grad_norm: NaturalFloat = 1.0
    """Gradients are clipped to this norm; 0 turns it off."""
    optim: Optimizer | None = None
    """Optimizer; by default fused AdamW where the device has it."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """Seed of everything random."""
    max_seq_length: PositiveInt = 1024
    """Longer rows are cut to this many tokens."""
    gradient_checkpointing: bool = True
    """Less memory for more time."""
    bf16: bool | None = None
    """Train in bf16; by default where the hardware has it."""
    fp16: bool | None = None
    """Train in fp16, which needs a GPU; by default not."""
    attn_implementation: AttentionName | None = None
    """The same as `model.transformers.attn_implementation`."""
    logging_steps: PositiveInt = 10
    """Steps between two points of the training series."""
    save_strategy: Strategy = "steps"
    """When checkpoints are saved."""
    save_steps: PositiveInt = 100
    """Steps between two checkpoints, with `save_strategy: steps`."""
    save_total_limit: PositiveInt | None = 2
    """Checkpoints to keep; the newest whole and the best one always stay."""
    save_model: bool = True
    """Deliver the trained model or adapter."""
    eval_strategy: Strategy = "no"
    """When the held-out loss is measured during the training."""
    eval_steps: PositiveInt | None = None
    """Steps between two evaluations, with `eval_strategy: steps`; by default `logging_steps`."""
    load_best_model_at_end: bool = False
    """Deliver the checkpoint with the lowest held-out loss."""
    report_to: Annotated[tuple[Tracker, ...], BeforeValidator(_trackers)] = ()
    """Trackers that get the metrics too; they must be installed on the worker."""
    project: Text | None = None
    """Name of the project in the trackers: of wandb and trackio, and of MLflow's experiment."""
    dataloader_num_workers: NaturalInt = 0
    """Processes that load batches."""
    dataset_num_proc: PositiveInt | None = None
    """Processes that tokenize."""
    resume_from_path: LocalOrUrl | None = None
    """Weights to start from, the same as `checkpoint.load.path`; optimizer and step count start anew."""

    @model_validator(mode="after")
    def _consistent(self) -> CommonTrainingSpec:
        faults = [(at, message, hint) for failed, at, message, hint in self._checks() if failed]
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """What gets the metrics too, wherever it was named."""
        return self.report_to

    @property
    def project_name(self) -> str | None:
        """The project in the trackers, wherever it was named."""
        return self.project

    def _checks(self) -> tuple[Check, ...]:
        evaluates = self.eval_strategy != "no"
        named = bool({*self.trackers} - {"tensorboard"})
        return (
            (
                self.project is not None and not named,
                "project",
                "has no effect without a tracker that has projects",
                "add report_to: [wandb], [trackio] or [mlflow], or leave it out",
            ),
            (bool(self.bf16 and self.fp16), "fp16", "cannot be set together with bf16", "leave one of them out"),
            (
                self.warmup_steps > 0 and self.warmup_ratio > 0,
                "warmup_ratio",
                "cannot be set together with warmup_steps",
                "leave one of them out",
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
                "needs evaluations during the training",
                "add eval_strategy: steps or epoch",
            ),
            (
                self.load_best_model_at_end and evaluates and not self._saves_where_it_evaluates(),
                "load_best_model_at_end",
                "needs a checkpoint at an evaluation",
                "make save_strategy equal to eval_strategy, and save_steps a multiple of eval_steps",
            ),
        )

    def _saves_where_it_evaluates(self) -> bool:
        if self.save_strategy != self.eval_strategy:
            return False
        return self.save_strategy == "epoch" or self.saving_steps % self.evaluation_steps == 0

    @property
    def saving_steps(self) -> int:
        """Steps between two checkpoints, wherever it was written."""
        return self.save_steps

    @property
    def evaluation_steps(self) -> int:
        """Steps between two evaluations, if they go by steps."""
        return self.eval_steps or self.logging_steps


class TrainingSpec(CommonTrainingSpec):
    """`spec.training`: how long, how fast and with what a model is trained."""

    packing: bool = False
    """Put several rows into one sequence."""
    group_by_length: bool = False
    """Put rows of similar length into one batch: less padding, at the cost of a less random order."""
    completion_only_loss: bool | None = None
    """Loss on responses only; by default wherever rows have responses."""
    append_eos: bool = True
    """Append the tokenizer's end token to answers that end with no special token, and train on it."""
    liger: bool | None = None
    """Liger kernels; by default where they are installed and the device has them."""
    neftune_noise_alpha: PositiveFloat | None = None
    """Noise on the embeddings (NEFTune)."""
    early_stopping: EarlyStoppingSpec | None = None
    """Stop when the held-out loss no longer falls."""

    def _checks(self) -> tuple[Check, ...]:
        return (
            *super()._checks(),
            (self.packing and self.group_by_length, "group_by_length", "has no effect with packing", "leave it out"),
            (
                self.early_stopping is not None and self.eval_strategy == "no",
                "early_stopping",
                "needs evaluations during the training",
                "add eval_strategy: steps or epoch",
            ),
        )


class LoraTrainingSpec(TrainingSpec):
    """`spec.training` of a LoRA training; two defaults differ."""

    learning_rate: PositiveFloat = 2e-4
    """Highest learning rate."""
    gradient_checkpointing: bool = False
    """Less memory for more time."""
