"""`taskType: evaluate`: measures a model, a tuned model or an adapter, so that two of them can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    FreeMapping,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Text,
    as_list,
    many_wrong,
    wrong,
)
from tunefleet.spec.options.answer_match import MatchSpec
from tunefleet.spec.options.data import TrainingData
from tunefleet.spec.options.generation import Stops, Temperature, TokenCount, TopP
from tunefleet.spec.options.rows import DataSource
from tunefleet.spec.options.rows import Faults as RowFaults
from tunefleet.spec.options.served_model import GeneratorModelSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec
from tunefleet.spec.value_preview import show

# Folder with a JSONL file for each evaluation: what came out for each row.
ITEMS_FOLDER: Final = "items"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_METRICS: Final = {"loss": ("loss", "perplexity"), "exact_match": ("accuracy",), "lm_eval": ()}
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "data": ("loss", "exact_match"),
    "max_seq_length": ("loss",),
    "completion_only_loss": ("loss",),
    "batch_size": ("loss", "lm_eval"),
    "generation": ("exact_match",),
    "match": ("exact_match",),
    "tasks": ("lm_eval",),
    "include_path": ("lm_eval",),
    "num_fewshot": ("lm_eval",),
    "limit": ("lm_eval",),
    "apply_chat_template": ("exact_match", "lm_eval"),
    "run_code": ("lm_eval",),
}
"""Key of an evaluation → the types that heed it."""


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise wrong("must be a letter, then letters, digits and _", "it stands in front of the names of the metrics")
    return value


class EvaluationData(TrainingData):
    """`evaluations[].data`: the rows; the keys are those of a training's `data`."""

    split: Text = "test"
    """Split of a dataset, with the hub's slices: `test[:100]`."""

    def at(self, index: int) -> tuple[DataSource, ...]:
        """Return the places that its rows may come from, by where they stand in the spec.

        Args:
            index: The place of its evaluation among all.
        """
        return tuple(replace(each, pointer=f"evaluations.{index}.{each.pointer}") for each in self.sources)

    def _faults(self) -> RowFaults:
        found = super()._faults()
        hint = "leave it out: every row of an evaluation is held out, and read once"
        names = ("eval", "streaming", "shuffle_buffer")
        return found + [(name, "belongs to a training", hint) for name in names if name in self.model_fields_set]


class AnswerSpec(Block):
    """`evaluations[].generation`: how answers are drawn; by default the likeliest token each time."""

    system_prompt: str | None = None
    """Stands before each prompt."""
    max_tokens: TokenCount = 256
    """Longest answer, in tokens."""
    temperature: Temperature = 0.0
    """How freely is drawn; 0 always takes the likeliest token."""
    top_p: TopP = 1.0
    """Draw among the likeliest tokens that together have this probability."""
    repetition_penalty: PositiveFloat | None = None
    """Against tokens of prompt and answer; above 1 discourages them."""
    stop: Stops = ()
    """Texts that end an answer."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), NotBool] = 42
    """Seed of the draw."""
    chat_template_kwargs: FreeMapping | None = None
    """Passed on to the model's chat template."""


class EvaluationSpec(Block):
    """`evaluations[]`: one thing that is measured."""

    type: Literal["loss", "exact_match", "lm_eval"]
    """`loss`: loss and perplexity on rows; `exact_match`: answers that are right; `lm_eval`: tasks of lm-eval."""
    name: Annotated[Text, AfterValidator(_name)] | None = None
    """Stands before the names of its metrics (`NAME_loss`); needed where two would have the same."""
    data: EvaluationData | None = None
    """With `loss` and `exact_match`: the rows."""
    max_seq_length: PositiveInt = 1024
    """With `loss`: longer rows are cut to this many tokens."""
    completion_only_loss: bool | None = None
    """With `loss`: loss on responses only; by default wherever rows have responses."""
    batch_size: PositiveInt = 8
    """With `loss` and `lm_eval`: rows of one forward pass."""
    generation: AnswerSpec = Field(default_factory=AnswerSpec)
    """With `exact_match`: how answers are drawn."""
    match: MatchSpec = Field(default_factory=MatchSpec)
    """With `exact_match`: what of them is compared."""
    tasks: Annotated[tuple[Text, ...], Field(min_length=1, max_length=200), BeforeValidator(as_list)] | None = None
    """With `lm_eval`: names of tasks; those of `include_path`, or lm-eval's own, whose data come from the hub."""
    include_path: Text | None = None
    """With `lm_eval`: folder with tasks of yours (YAML and data); it travels with the submit. Files of data in it are
    named relative to it."""
    num_fewshot: NaturalInt | None = None
    """With `lm_eval`: solved examples before each question; by default what the task says."""
    limit: PositiveInt | None = None
    """With `lm_eval`: the first so many questions of each task."""
    apply_chat_template: bool = False
    """With `exact_match` and `lm_eval`: put prompts into the model's chat template; conversations always are."""
    run_code: bool = False
    """With `lm_eval`: run the Python functions that tasks name (`!function`), and code that a model has written where a
    task does that; needs a worker that was started with `--allow-code`."""

    @model_validator(mode="after")
    def _fitting(self) -> EvaluationSpec:
        faults: Faults = []
        needed = "tasks" if self.type == "lm_eval" else "data"
        if getattr(self, needed) is None:
            faults.append((needed, f"is required with type: {self.type}", None))
        for key, types in _KEYS.items():
            if self.type not in types and key in self.model_fields_set and getattr(self, key) is not None:
                faults.append((key, f"belongs to type: {' and '.join(types)}", "leave it out"))
        faults += self._shape_faults()
        if faults:
            raise many_wrong(faults)
        return self

    def _shape_faults(self) -> Faults:
        plain = self.data is not None and self.data.shape.kind == "text"
        if plain and self.type == "exact_match":
            return [("data", "has no answers to compare with", "name prompt_column and response_column")]
        if plain and self.completion_only_loss:
            return [("completion_only_loss", "needs rows with a response, and these are plain text", "leave it out")]
        return []

    @property
    def label(self) -> str:
        """What it is called: its name, else its type."""
        return self.name or self.type

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of its metrics; those of lm-eval are known only when it has run."""
        return tuple(self.metric(name) for name in _METRICS[self.type])

    def metric(self, name: str) -> str:
        """Return the name that a metric of it has in the result."""
        return name if self.name is None else f"{self.name}_{name}"


class IntervalSpec(Block):
    """`spec.interval`: how sure the metrics are."""

    confidence: Annotated[float, Field(gt=0.5, lt=1), NotBool] = 0.95
    """How often an interval made so holds the true value."""
    resamples: Annotated[int, Field(ge=100, le=100_000), NotBool] = 1000
    """Draws of the bootstrap."""
    seed: NaturalInt = 42
    """Seed of these draws."""


class GateSpec(Block):
    """`spec.gates[]`: what a metric must reach; whether all do is `passed` of the result, which a condition can ask."""

    metric: Text
    """Its name in the result, such as `accuracy`."""
    use: Literal["value", "low", "high"] = "value"
    """The number itself, or an end of its interval: `low` with `at_least` asks for more than luck."""
    at_least: Annotated[float, NotBool] | None = None
    """The least that is good enough; may be another task's, as `${base.result.metrics.accuracy.high}`."""
    at_most: Annotated[float, NotBool] | None = None
    """The most that is good enough."""

    @model_validator(mode="after")
    def _bounded(self) -> GateSpec:
        if self.at_least is None and self.at_most is None:
            raise wrong("asks for nothing", "give at_least, at_most, or both")
        return self


class EvaluateTaskSpec(AnsweringTaskSpec):
    """`taskType: evaluate`: measures a model, a tuned model or an adapter."""

    task_type: Literal["evaluate"] = Field(default="evaluate", alias="taskType")
    """`evaluate`"""
    evaluations: Annotated[tuple[EvaluationSpec, ...], Field(min_length=1, max_length=50)]
    """What is measured."""
    interval: IntervalSpec = Field(default_factory=IntervalSpec)
    """How sure the metrics are."""
    gates: Annotated[tuple[GateSpec, ...], Field(max_length=50)] = ()
    """What the metrics must reach."""

    @property
    def requires_code(self) -> bool:
        """Whether code of the model or of a task is run."""
        return super().requires_code or any(each.run_code for each in self.evaluations)

    @property
    def environments(self) -> tuple[str, ...]:
        """That of lm-eval where it measures; the model is run by Transformers."""
        return ("lm-eval",) if any(each.type == "lm_eval" for each in self.evaluations) else ()

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        del blocks
        return (*ALWAYS_LEFT, ITEMS_FOLDER)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        evaluations = blocks.get("evaluations") or ()
        gates = _gate_faults(blocks.get("gates") or (), evaluations)
        return [*super().faults(blocks), *_adapter_faults(blocks), *_name_faults(evaluations), *gates]


def _adapter_faults(blocks: Mapping[str, Any]) -> Faults:
    model: GeneratorModelSpec | None = blocks.get("model")
    beside = [index for index, each in enumerate(model.adapters if model else ()) if each.apply == "runtime"]
    hint = "one task for each of them, and `tunefleet compare`; or apply: merge"
    return [(f"model.adapters.{index}", "is a second model to evaluate", hint) for index in beside[1:]]


def _name_faults(evaluations: tuple[EvaluationSpec, ...]) -> Faults:
    faults: Faults = []
    taken: set[str] = set()
    labels: set[str] = set()
    for index, each in enumerate(evaluations):
        shared = [name for name in each.metrics if name in taken]
        if each.label in labels or shared:
            what = f"the name {show(each.label)}" if each.label in labels else f"metrics called {', '.join(shared)}"
            faults.append((f"evaluations.{index}", f"has {what}, as one before it", "give each a name of its own"))
        labels.add(each.label)
        taken.update(each.metrics)
    return faults


def _gate_faults(gates: tuple[GateSpec, ...], evaluations: tuple[EvaluationSpec, ...]) -> Faults:
    # What lm-eval calls its metrics is known only when it has run.
    if not evaluations or any(each.type == "lm_eval" for each in evaluations):
        return []
    known = [name for each in evaluations for name in each.metrics]
    hint = f"there will be {', '.join(known)}"
    return [
        (f"gates.{index}.metric", f"{show(gate.metric)} is not measured", hint)
        for index, gate in enumerate(gates)
        if gate.metric not in known
    ]
