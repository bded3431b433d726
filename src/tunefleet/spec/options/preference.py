"""`spec.training` of preference tuning and of `ppo`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    NaturalFloat,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Text,
    many_wrong,
    only,
)
from tunefleet.spec.options.training_options import Check, CommonTrainingSpec, Tracker

_SAME = "remove one of them"


class PairTrainingSpec(CommonTrainingSpec):
    """The keys of `spec.training` that `dpo` and `ppo` have."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, slower."""
    save_freq: PositiveInt | None = None
    """Alias of `save_steps`."""

    def _checks(self) -> tuple[Check, ...]:
        both = self.save_freq is not None and "save_steps" in self.model_fields_set
        return (*super()._checks(), (both, "save_freq", "is an alias of save_steps", _SAME))

    @property
    def saving_steps(self) -> int:
        """Steps between checkpoints, from either spelling."""
        return self.save_freq or self.save_steps


class PreferenceTrainingSpec(PairTrainingSpec):
    """The keys of `spec.training` that all preference and reward tasks have."""

    batch_size: PositiveInt = 4
    """Rows per device and forward pass."""
    learning_rate: PositiveFloat = 5e-7
    """Peak learning rate."""
    save_steps: PositiveInt = 500
    """Steps between checkpoints, with `save_strategy: steps`."""


class AnswerTrainingSpec(PreferenceTrainingSpec):
    """The keys of `spec.training` of `dpo`, `kto`, `orpo` and `reward`, which train on existing answers."""

    max_prompt_length: PositiveInt | None = None
    """Maximum number of prompt tokens; longer prompts are truncated at the start. Default: only `max_seq_length`
    applies, at the end."""
    append_eos: bool = True
    """Append the tokenizer's EOS token to answers that do not end with a special token, and train it."""


Beta = Annotated[float, Field(gt=0, le=100), NotBool]


class DpoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `dpo` task."""

    beta: Beta = 0.1
    """Strength of the constraint towards the reference model."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    """Loss function."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), NotBool] = 0.0
    """With `loss_type: robust`: assumed fraction of pairs with swapped labels."""
    precompute_ref_log_probs: bool = False
    """Compute the reference log probabilities of all pairs before training, so that no second model stays in memory."""

    def _checks(self) -> tuple[Check, ...]:
        smooth = self.loss_type != "robust" and self.label_smoothing > 0
        return (
            *super()._checks(),
            (smooth, "label_smoothing", "has no effect without loss_type: robust", "remove it"),
        )


class KtoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `kto` task."""

    # KTO estimates the KL term from mismatched pairs within a batch.
    batch_size: Annotated[PositiveInt, Field(ge=2)] = 4
    """Rows per device and forward pass; at least 2, which the KL estimate needs."""
    beta: Beta = 0.1
    """Strength of the constraint towards the reference model."""
    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """Loss function."""
    desirable_weight: PositiveFloat = 1.0
    """Weight of desirable answers."""
    undesirable_weight: PositiveFloat = 1.0
    """Weight of undesirable answers."""
    precompute_ref_log_probs: bool = False
    """Compute the reference log probabilities of all rows before training, so that no second model stays in memory."""


class OrpoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of an `orpo` task."""

    learning_rate: PositiveFloat = 8e-6
    """Peak learning rate."""
    beta: Beta = 0.1
    """Weight of the odds ratio loss (λ in the paper), relative to the loss on the chosen answer."""


class RewardTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `reward` task."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate."""
    center_rewards_coefficient: PositiveFloat | None = None
    """Coefficient that centers the rewards of a pair around zero; 0.01 is usual."""


def _tracker(value: Any) -> Any:
    return None if value == "none" else value


class PpoTrainingSpec(PairTrainingSpec):
    """`spec.training` of a `ppo` task."""

    batch_size: PositiveInt = 1
    """Prompts per device and forward pass."""
    per_device_train_batch_size: PositiveInt | None = None
    """Alias of `batch_size`."""
    learning_rate: PositiveFloat = 1.41e-5
    """Peak learning rate."""
    max_seq_length: PositiveInt = 512
    """Maximum number of prompt tokens; longer prompts are truncated at the start."""
    save_steps: PositiveInt = 500
    """Steps between checkpoints, with `save_strategy: steps`."""
    mini_batch_size: PositiveInt = 1
    """Rows per optimizer step, out of a batch."""
    num_mini_batches: PositiveInt = 1
    """Number of mini-batches per batch; if set, the default `mini_batch_size` of 1 is ignored."""
    steps: PositiveInt | None = None
    """Total number of batches of `batch_size` prompts per device; with `gradient_accumulation_steps` a training step
    takes several of them."""
    ppo_epochs: PositiveInt = 4
    """Optimization epochs per batch."""
    kl_coef: Annotated[float, Field(ge=0, le=100), NotBool] = 0.05
    """Weight of the KL divergence from the reference model."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] = 0.7
    """Sampling temperature; `generation.temperature` takes precedence."""
    target_kl: Annotated[NaturalFloat, Field(gt=0)] | None = None
    """With `early_stopping`: target KL divergence from the reference model, in nats per answer."""
    early_stopping: bool = False
    """Stop training when the KL divergence exceeds 1.5 × `target_kl`."""
    optimize_cuda_cache: bool = False
    """Release cached GPU memory after each step; slower."""
    log_with: Annotated[Tracker | None, BeforeValidator(_tracker)] = None
    """Alias of `report_to`, for one tracker."""
    tracker_project_name: Text | None = None
    """Alias of `project`."""
    save_safetensors: Annotated[
        bool, only(True, "models are always saved as safetensors", "remove it, or use true")
    ] = True
    """Always true."""
    padding_side: Literal["left", "right"] = "left"
    """Padding side of short prompts; does not affect the answers."""

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """Experiment trackers, from either spelling."""
        return self.report_to if self.log_with is None else (self.log_with,)

    @property
    def project_name(self) -> str | None:
        """Project in the trackers, from either spelling."""
        return self.project or self.tracker_project_name

    @model_validator(mode="after")
    def _steps_and_stops(self) -> PpoTrainingSpec:
        given = self.model_fields_set
        checks: tuple[Check, ...] = (
            (
                self.per_device_train_batch_size is not None and "batch_size" in given,
                "per_device_train_batch_size",
                "is an alias of batch_size",
                _SAME,
            ),
            (self.steps is not None and self.max_steps is not None, "steps", "contradicts max_steps", _SAME),
            (
                self.early_stopping and self.target_kl is None,
                "early_stopping",
                "needs a target divergence",
                "add target_kl",
            ),
            (self.log_with is not None and bool(self.report_to), "log_with", "is an alias of report_to", _SAME),
            (
                self.project is not None and self.tracker_project_name is not None,
                "tracker_project_name",
                "is an alias of project",
                _SAME,
            ),
            *self._parts_checks(),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            raise many_wrong(faults)
        return self

    def _parts_checks(self) -> tuple[Check, ...]:
        given, rows = self.model_fields_set, self.rows
        both = self._by_rows and "num_mini_batches" in given and self.num_mini_batches > 1
        uneven = f"does not divide the {rows} prompts of a step on each device (batch_size × accumulation)"
        return (
            (
                both and self.mini_batch_size * self.num_mini_batches != rows,
                "num_mini_batches",
                f"contradicts mini_batch_size: a step has {rows} prompts on each device",
                _SAME,
            ),
            (self._by_rows and rows % self.mini_batch_size > 0, "mini_batch_size", uneven, None),
            (not self._by_rows and rows % self.num_mini_batches > 0, "num_mini_batches", uneven, None),
        )

    @property
    def rows(self) -> int:
        """Prompts per step and device."""
        # PPO samples answers for a full step at a time.
        return self.device_batch * self.gradient_accumulation_steps

    @property
    def parts(self) -> int:
        """Optimizer steps per pass over a batch."""
        return self.rows // self.mini_batch_size if self._by_rows else self.num_mini_batches

    @property
    def _by_rows(self) -> bool:
        given = self.model_fields_set
        return "mini_batch_size" in given and (self.mini_batch_size > 1 or "num_mini_batches" not in given)

    @property
    def device_batch(self) -> int:
        """Prompts per device and forward pass, from either spelling."""
        return self.per_device_train_batch_size or self.batch_size
