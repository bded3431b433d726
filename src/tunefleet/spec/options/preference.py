"""`spec.training` of the trainings on preferences, and of `ppo`."""

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

_SAME = "leave one of them out"


class PairTrainingSpec(CommonTrainingSpec):
    """The keys of `spec.training` that `dpo` and `ppo` have."""

    gradient_checkpointing: bool = False
    """Less memory for more time."""
    save_freq: PositiveInt | None = None
    """The same as `save_steps`."""

    def _checks(self) -> tuple[Check, ...]:
        both = self.save_freq is not None and "save_steps" in self.model_fields_set
        return (*super()._checks(), (both, "save_freq", "means the same as save_steps", _SAME))

    @property
    def saving_steps(self) -> int:
        """Steps between two checkpoints, wherever it was written."""
        return self.save_freq or self.save_steps


class PreferenceTrainingSpec(PairTrainingSpec):
    """The keys of `spec.training` that all trainings on preferences and on rewards have."""

    batch_size: PositiveInt = 4
    """Rows a device and forward pass."""
    learning_rate: PositiveFloat = 5e-7
    """Highest learning rate."""
    save_steps: PositiveInt = 500
    """Steps between two checkpoints, with `save_strategy: steps`."""


class AnswerTrainingSpec(PreferenceTrainingSpec):
    """The keys of `spec.training` of the kinds that train on given answers: `dpo`, `kto`, `orpo`, `reward`."""

    max_prompt_length: PositiveInt | None = None
    """Longer prompts lose their beginning; by default only `max_seq_length` cuts, at the end."""
    append_eos: bool = True
    """Append the tokenizer's end token to answers that end with no special token, and train on it."""


Beta = Annotated[float, Field(gt=0, le=100), NotBool]


class DpoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `dpo` task."""

    beta: Beta = 0.1
    """How closely the model is held to the one that it started from."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    """The loss."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), NotBool] = 0.0
    """With `loss_type: robust`: the part of the pairs that is taken to be the wrong way round."""
    precompute_ref_log_probs: bool = False
    """Let the reference judge all pairs before the training, which then needs no second model in memory."""

    def _checks(self) -> tuple[Check, ...]:
        smooth = self.loss_type != "robust" and self.label_smoothing > 0
        return (
            *super()._checks(),
            (smooth, "label_smoothing", "has no effect without loss_type: robust", "leave it out"),
        )


class KtoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `kto` task."""

    batch_size: Annotated[PositiveInt, Field(ge=2)] = 4
    """Rows a device and forward pass; at least 2, of which the divergence is estimated."""
    beta: Beta = 0.1
    """How closely the model is held to the one that it started from."""
    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """The loss."""
    desirable_weight: PositiveFloat = 1.0
    """Weight of good answers."""
    undesirable_weight: PositiveFloat = 1.0
    """Weight of bad answers."""
    precompute_ref_log_probs: bool = False
    """Let the reference judge all rows before the training, which then needs no second model in memory."""


class OrpoTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of an `orpo` task."""

    learning_rate: PositiveFloat = 8e-6
    """Highest learning rate."""
    beta: Beta = 0.1
    """Weight of the odds ratio (λ of the paper) beside the loss on the better answer."""


class RewardTrainingSpec(AnswerTrainingSpec):
    """`spec.training` of a `reward` task."""

    learning_rate: PositiveFloat = 1e-5
    """Highest learning rate."""
    center_rewards_coefficient: PositiveFloat | None = None
    """Holds the rewards of a pair around zero; 0.01 is usual."""


def _tracker(value: Any) -> Any:
    return None if value == "none" else value


class PpoTrainingSpec(PairTrainingSpec):
    """`spec.training` of a `ppo` task."""

    batch_size: PositiveInt = 1
    """Prompts a device and forward pass."""
    per_device_train_batch_size: PositiveInt | None = None
    """The same as `batch_size`."""
    learning_rate: PositiveFloat = 1.41e-5
    """Highest learning rate."""
    max_seq_length: PositiveInt = 512
    """Longest prompt, in tokens; longer ones lose their beginning."""
    save_steps: PositiveInt = 500
    """Steps between two checkpoints, with `save_strategy: steps`."""
    mini_batch_size: PositiveInt = 1
    """Rows of one optimizer step, out of a batch."""
    num_mini_batches: PositiveInt = 1
    """Into how many parts a batch is divided; beside it a `mini_batch_size` of 1, the default, says nothing."""
    steps: PositiveInt | None = None
    """Batches in all, of `batch_size` prompts on each device; with `gradient_accumulation_steps` a step of the training
    takes several of them."""
    ppo_epochs: PositiveInt = 4
    """How often each batch is trained on."""
    kl_coef: Annotated[float, Field(ge=0, le=100), NotBool] = 0.05
    """Weight of the divergence from the model that it started from."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] = 0.7
    """How freely answers are drawn; `generation.temperature` has precedence."""
    target_kl: Annotated[NaturalFloat, Field(gt=0)] | None = None
    """With `early_stopping`: the greatest divergence from the model that it started from, in nats an answer."""
    early_stopping: bool = False
    """End the training when the divergence is above `target_kl` by half."""
    optimize_cuda_cache: bool = False
    """Give unused memory of the GPU back after each step; slower."""
    log_with: Annotated[Tracker | None, BeforeValidator(_tracker)] = None
    """The same as `report_to`, of one tracker."""
    tracker_project_name: Text | None = None
    """The same as `project`."""
    save_safetensors: Annotated[
        bool, only(True, "models are always saved as safetensors", "leave it out, or write true")
    ] = True
    """Always true."""
    padding_side: Literal["left", "right"] = "left"
    """Where short prompts are filled up; no answer depends on it."""

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """What gets the metrics too, wherever it was named."""
        return self.report_to if self.log_with is None else (self.log_with,)

    @property
    def project_name(self) -> str | None:
        """The project in the trackers, wherever it was named."""
        return self.project or self.tracker_project_name

    @model_validator(mode="after")
    def _steps_and_stops(self) -> PpoTrainingSpec:
        given = self.model_fields_set
        checks: tuple[Check, ...] = (
            (
                self.per_device_train_batch_size is not None and "batch_size" in given,
                "per_device_train_batch_size",
                "means the same as batch_size",
                _SAME,
            ),
            (self.steps is not None and self.max_steps is not None, "steps", "contradicts max_steps", _SAME),
            (
                self.early_stopping and self.target_kl is None,
                "early_stopping",
                "needs to know the greatest divergence",
                "add target_kl",
            ),
            (self.log_with is not None and bool(self.report_to), "log_with", "means the same as report_to", _SAME),
            (
                self.project is not None and self.tracker_project_name is not None,
                "tracker_project_name",
                "means the same as project",
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
        """Prompts of a step on each device."""
        return self.device_batch * self.gradient_accumulation_steps

    @property
    def parts(self) -> int:
        """Optimizer steps of one pass over a batch."""
        return self.rows // self.mini_batch_size if self._by_rows else self.num_mini_batches

    @property
    def _by_rows(self) -> bool:
        given = self.model_fields_set
        return "mini_batch_size" in given and (self.mini_batch_size > 1 or "num_mini_batches" not in given)

    @property
    def device_batch(self) -> int:
        """Prompts a device and forward pass, wherever it was written."""
        return self.per_device_train_batch_size or self.batch_size
