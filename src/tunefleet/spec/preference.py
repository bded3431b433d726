"""`spec.data` and `spec.training` of the trainings on preferences (`dpo`) and on rewards (`ppo`)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    NaturalFloat,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Text,
    many_wrong,
    only,
)
from tunefleet.spec.rows import Faults, JsonlFile, RowsSpec
from tunefleet.spec.training import Check, CommonTrainingSpec, Tracker

Words = Annotated[str, Field(min_length=1)]
_SAME = "leave one of them out"


class Preference(Block):
    """`data.preferences[]`: two answers to a prompt."""

    prompt: Words
    """The prompt."""
    chosen: Words
    """The better answer."""
    rejected: Words
    """The worse one."""


class DpoJsonl(JsonlFile):
    """`data.jsonl` of a `dpo` task: one JSON object a line, from the first of several places that is there."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    chosen_field: Text = "chosen"
    """Field with the better answer."""
    rejected_field: Text = "rejected"
    """Field with the worse one."""


class DpoData(RowsSpec):
    """`spec.data` of a `dpo` task: exactly one source of pairs. There is no demo data."""

    inline: ClassVar[str] = "preferences"

    jsonl: DpoJsonl | None = None
    """A JSONL file with its own field names."""
    preferences: Annotated[tuple[Preference, ...], Field(min_length=1)] | None = None
    """Pairs, written here."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""
    chosen_column: Text = "chosen"
    """Column with the better answer."""
    rejected_column: Text = "rejected"
    """Column with the worse one."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *_columns_beside(self, ("prompt_column", "chosen_column", "rejected_column"))]


class PpoJsonl(JsonlFile):
    """`data.jsonl` of a `ppo` task: one JSON object a line, from the first of several places that is there."""

    query_field: Text = "query"
    """Field with the prompt."""
    response_field: Text | None = None
    """Field with an answer that is already there; it stands behind the prompt."""


class PpoData(RowsSpec):
    """`spec.data` of a `ppo` task: exactly one source of prompts. There is no demo data."""

    jsonl: PpoJsonl | None = None
    """A JSONL file with its own field names."""
    prompts: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    """Prompts, written here."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *_columns_beside(self, ("prompt_column",))]


def _columns_beside(data: RowsSpec, columns: tuple[str, ...]) -> Faults:
    """Find names of columns that nothing is read by."""
    if data.jsonl is None and getattr(data, data.inline) is None:
        return []
    instead = "name the fields in data.jsonl" if data.jsonl is not None else "leave it out"
    return [
        (name, "has no effect: the rows have no columns", instead) for name in columns if name in data.model_fields_set
    ]


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


class DpoTrainingSpec(PairTrainingSpec):
    """`spec.training` of a `dpo` task."""

    batch_size: PositiveInt = 4
    """Rows a device and forward pass."""
    learning_rate: PositiveFloat = 5e-7
    """Highest learning rate."""
    save_steps: PositiveInt = 500
    """Steps between two checkpoints, with `save_strategy: steps`."""
    beta: Annotated[float, Field(gt=0, le=100), NotBool] = 0.1
    """How closely the model is held to the one that it started from."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    """The loss."""


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
    """Longer prompts are cut to this many tokens."""
    save_steps: PositiveInt = 500
    """Steps between two checkpoints, with `save_strategy: steps`."""
    mini_batch_size: PositiveInt = 1
    """Rows of one optimizer step, out of a batch."""
    num_mini_batches: PositiveInt = 1
    """Into how many parts a batch is divided."""
    steps: PositiveInt | None = None
    """Batches in all, of `batch_size` prompts on each device."""
    ppo_epochs: PositiveInt = 4
    """How often each batch is trained on."""
    kl_coef: Annotated[float, Field(ge=0, le=100), NotBool] = 0.05
    """Weight of the divergence from the model that it started from."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] = 0.7
    """How freely answers are drawn; `generation.temperature` has precedence."""
    target_kl: Annotated[NaturalFloat, Field(gt=0)] | None = None
    """With `early_stopping`: the greatest divergence."""
    early_stopping: bool = False
    """End the training when the divergence is above `target_kl` by half."""
    optimize_cuda_cache: bool = False
    """Give unused memory of the GPU back after each step; slower."""
    log_with: Annotated[Tracker | None, BeforeValidator(_tracker)] = None
    """The same as `report_to`, of one tracker."""
    tracker_project_name: Text | None = None
    """Name of the project in the tracker."""
    save_safetensors: Annotated[
        bool, only(True, "models are always saved as safetensors", "leave it out, or write true")
    ] = True
    """Always true."""
    padding_side: Literal["left", "right"] = "left"
    """Where short prompts are filled up."""

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
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def device_batch(self) -> int:
        """Prompts a device and forward pass, wherever it was written."""
        return self.per_device_train_batch_size or self.batch_size
