"""`sweep`: a search over hyperparameters, whose trials are runs of the workflow with other values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    Label,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Text,
    as_block,
    wrong,
)
from tunefleet.validation_errors import show

EVAL_LOSS: Final = "eval_loss"
MAX_TRIALS: Final = 2_000
MAX_CHOICES: Final = 100
_MAX_PARAMETERS: Final = 50
_LIST_HINT: Final = (
    "write a list of choices, such as [8, 16, 32], or a range, such as {min: 1e-5, max: 1e-3, log: true}"
)
# Options of each pruner, with their defaults.
_OPTIONS: Final[Mapping[str, Mapping[str, int | None]]] = {
    "median": {"min_evaluations": 1, "startup_trials": 5},
    "asha": {"min_evaluations": 1, "reduction_factor": 3},
    "hyperband": {"min_evaluations": 1, "max_evaluations": None, "reduction_factor": 3},
}


_LOWER: Final = ("loss", "perplexity", "ppl", "error_rate")
_HIGHER: Final = ("accuracy", "exact_match", "reward", "f1", "bleu", "rouge", "score", "win_rate", "margins")


def lower_is_better(name: str) -> bool | None:
    """Return the direction of a metric by its name; None if it has none, such as a learning rate."""
    if any(part in name for part in _HIGHER):
        return False
    return True if any(part in name for part in _LOWER) else None


class RangeSpec(Block):
    """A parameter with a range of values."""

    min: Annotated[int | float, NotBool]
    """Lowest value. If `min` and `max` are integers, so are all values."""
    max: Annotated[int | float, NotBool]
    """Highest value, included."""
    log: bool = False
    """Search on a logarithmic scale, such as for learning rates."""
    count: Annotated[int, Field(ge=2, le=MAX_CHOICES), NotBool] | None = None
    """With `sampler: grid`: number of values, evenly spaced, including `min` and `max`."""

    @model_validator(mode="after")
    def _consistent(self) -> RangeSpec:
        if self.min >= self.max:
            raise wrong(f"must be greater than min, {self.min}", at="max")
        if self.log and self.min <= 0:
            raise wrong("must be greater than 0 with log: true", at="min")
        return self

    @property
    def integer(self) -> bool:
        """Whether all values are integers."""
        return isinstance(self.min, int) and isinstance(self.max, int)

    def grid(self) -> list[int | float]:
        """Return `count` evenly spaced values; of an integer range, rounded and without duplicates."""
        assert self.count is not None, "checked by `SweepSpec`"
        low, high = (math.log(self.min), math.log(self.max)) if self.log else (self.min, self.max)
        inner = (low + (high - low) * at / (self.count - 1) for at in range(1, self.count - 1))
        values = [self.min, *(math.exp(each) if self.log else each for each in inner), self.max]
        return list(dict.fromkeys(map(round, values))) if self.integer else [float(f"{each:.6g}") for each in values]


def _parameter(value: Any) -> Any:
    if isinstance(value, RangeSpec | tuple):
        return value
    if isinstance(value, Mapping):
        return as_block(RangeSpec, value)
    if not isinstance(value, list):
        raise wrong(f"must be a list or a range, not {show(value)}", _LIST_HINT)
    if not 1 <= len(value) <= MAX_CHOICES:
        raise wrong(f"has {len(value)} choices; 1 to {MAX_CHOICES} are allowed")
    texts = [json.dumps(each, sort_keys=True) for each in value]
    for number, text in enumerate(texts):
        if text in texts[:number]:
            raise wrong(f"is a duplicate: {text}", "leave one of them out", at=str(number))
    return tuple(value)


Parameter = Annotated[RangeSpec | tuple[Any, ...], BeforeValidator(_parameter)]


def _paths(value: dict[str, Any]) -> dict[str, Any]:
    if not 1 <= len(value) <= _MAX_PARAMETERS:
        raise wrong(f"has {len(value)} entries; 1 to {_MAX_PARAMETERS} are allowed")
    return value


class ObjectiveSpec(Block):
    """`sweep.objective`: the metric that is optimized."""

    metric: Text = EVAL_LOSS
    """Name of a metric that the run reports. The value of a trial is the last one."""
    direction: Literal["minimize", "maximize"] | None = None
    """Default: by the metric's name. Losses and perplexities are minimized; accuracies, rewards, scores maximized."""

    @model_validator(mode="after")
    def _directed(self) -> ObjectiveSpec:
        if self.direction is None and lower_is_better(self.metric) is None:
            raise wrong(f"is required for the metric {self.metric}", "write minimize or maximize", at="direction")
        return self

    @property
    def minimized(self) -> bool:
        """Whether a lower value is better."""
        return self.direction == "minimize" if self.direction else bool(lower_is_better(self.metric))


class PrunerSpec(Block):
    """`sweep.pruner`: when a trial that falls behind is stopped early. It is asked after each evaluation."""

    name: Literal["median", "asha", "hyperband"]
    """`median`: stop a trial that is worse than the median of the others at the same evaluation. `asha`: asynchronous
    successive halving: of the trials that reach a rung, one in `reduction_factor` continues. `hyperband`: several of
    these with different first rungs."""
    min_evaluations: PositiveInt | None = None
    """Evaluations before a trial may be stopped. Default: 1."""
    max_evaluations: PositiveInt | None = None
    """With `hyperband`: evaluations of a complete run. Default: `max_steps` divided by `eval_steps`."""
    reduction_factor: Annotated[int, Field(ge=2, le=100), NotBool] | None = None
    """With `asha` and `hyperband`: one in this many trials continues at each rung; rungs are at `min_evaluations` times
    its powers. Default: 3."""
    startup_trials: NaturalInt | None = None
    """With `median`: complete trials before the first one may be stopped. Default: 5."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        data = {"name": data} if isinstance(data, str) else data
        options = _OPTIONS.get(str(data.get("name"))) if isinstance(data, Mapping) else None
        if options is None:
            return data
        given = {key: value for key, value in data.items() if value is not None}
        strange = next((key for key in given if key in cls.model_fields and key not in {"name", *options}), None)
        if strange is not None:
            raise wrong(f"has no effect with the pruner {given['name']}", f"it has {', '.join(options)}", at=strange)
        return {**{key: value for key, value in options.items() if value is not None}, **given}


def _objective(value: Any) -> Any:
    return {"metric": value} if isinstance(value, str) else value


class SweepSpec(Block):
    """`sweep`: run the workflow several times with other values, and find the best ones."""

    name: Label | None = None
    """Name of the sweep. Default: `metadata.name`."""
    parameters: Annotated[dict[str, Parameter], AfterValidator(_paths)]
    """What varies: dotted path below `spec`, such as `training.learning_rate` → a list of choices, or a range with
    `min`, `max` and `log`."""
    sampler: Literal["grid", "random", "tpe"] = "tpe"
    """How values are chosen: `grid`: every combination. `random`: independently. `tpe`: by the results of earlier
    trials (tree-structured Parzen estimator)."""
    pruner: PrunerSpec | None = None
    """Early stopping of trials: `median`, `asha` or `hyperband`, or a mapping with options. Default: none."""
    objective: Annotated[ObjectiveSpec, BeforeValidator(_objective)] = Field(default_factory=ObjectiveSpec)
    """The metric to optimize, or a mapping with its direction."""
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), NotBool] | None = None
    """Number of trials. With `grid`, default: all combinations; else required."""
    parallel: Annotated[int, Field(ge=1, le=500), NotBool] = 1
    """Trials at the same time. They are queued like other runs."""
    max_hours: PositiveFloat | None = None
    """Budget: hours after which no further trial starts, and running ones are stopped and kept."""
    max_gpu_hours: PositiveFloat | None = None
    """Budget: GPU hours of all trials, with the same effect."""
    max_failures: NaturalInt = 3
    """Failed trials that the sweep tolerates. A diverged trial does not count."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), NotBool] = 0
    """Seed of the sampler."""

    @model_validator(mode="after")
    def _consistent(self) -> SweepSpec:
        if self.sampler != "grid" and self.trials is None:
            raise wrong(f"is required with sampler: {self.sampler}", "add trials: 20", at="trials")
        return self

    @property
    def combinations(self) -> int:
        """Number of combinations of a grid."""
        return math.prod(len(each.grid() if isinstance(each, RangeSpec) else each) for each in self.parameters.values())

    @property
    def total(self) -> int:
        """Number of trials."""
        if self.sampler != "grid":
            assert self.trials is not None, "checked above"
            return self.trials
        return self.combinations if self.trials is None else min(self.trials, self.combinations)
