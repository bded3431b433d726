"""`taskType: evaluate`: evaluates a model, a fine-tuned model or an adapter."""

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
from tunefleet.validation_errors import show

# Folder with one JSONL file per evaluation, with the results of each row.
ITEMS_FOLDER: Final = "items"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_METRICS: Final = {"loss": ("loss", "perplexity"), "exact_match": ("accuracy",), "lm_eval": ()}
# Key of an evaluation → the types that use it.
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


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise wrong("must be a letter, followed by letters, digits and _", "it is the prefix of the metric names")
    return value


class EvaluationData(TrainingData):
    """`evaluations[].data`: the rows; the same keys as `data` of a training task."""

    split: Text = "test"
    """Split of the dataset, optionally with a slice as in `datasets`: `test[:100]`."""

    def at(self, index: int) -> tuple[DataSource, ...]:
        """Return its sources with their pointers in the spec.

        Args:
            index: Index of its evaluation.
        """
        return tuple(replace(each, pointer=f"evaluations.{index}.{each.pointer}") for each in self.sources)

    def _faults(self) -> RowFaults:
        found = super()._faults()
        hint = "remove it: all rows of an evaluation are used once"
        names = ("eval", "streaming", "shuffle_buffer")
        return found + [(name, "is only for training tasks", hint) for name in names if name in self.model_fields_set]


class AnswerSpec(Block):
    """`evaluations[].generation`: sampling parameters; default: greedy decoding."""

    system_prompt: str | None = None
    """System prompt, put before each prompt."""
    max_tokens: TokenCount = 256
    """Maximum number of tokens per answer."""
    temperature: Temperature = 0.0
    """Sampling temperature; 0 = greedy."""
    top_p: TopP = 1.0
    """Nucleus sampling: sample from the most likely tokens whose probabilities add up to this value."""
    repetition_penalty: PositiveFloat | None = None
    """Penalty on tokens of the prompt and the answer; values above 1 discourage repetition."""
    stop: Stops = ()
    """Stop strings, which end an answer."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), NotBool] = 42
    """Random seed of the sampling."""
    chat_template_kwargs: FreeMapping | None = None
    """Extra arguments of the chat template."""


class EvaluationSpec(Block):
    """`evaluations[]`: one evaluation."""

    type: Literal["loss", "exact_match", "lm_eval"]
    """`loss`: loss and perplexity on rows; `exact_match`: share of correct answers; `lm_eval`: lm-eval tasks."""
    name: Annotated[Text, AfterValidator(_name)] | None = None
    """Prefix of its metric names (`NAME_loss`); required if two evaluations would have the same names."""
    data: EvaluationData | None = None
    """With `loss` and `exact_match`: the rows."""
    max_seq_length: PositiveInt = 1024
    """With `loss`: max sequence length in tokens; longer rows are truncated."""
    completion_only_loss: bool | None = None
    """With `loss`: measure only responses; default: on if the rows have responses."""
    batch_size: PositiveInt = 8
    """With `loss` and `lm_eval`: rows per forward pass."""
    generation: AnswerSpec = Field(default_factory=AnswerSpec)
    """With `exact_match`: sampling parameters."""
    match: MatchSpec = Field(default_factory=MatchSpec)
    """With `exact_match`: which part of an answer is compared."""
    tasks: Annotated[tuple[Text, ...], Field(min_length=1, max_length=200), BeforeValidator(as_list)] | None = None
    """With `lm_eval`: task names, from `include_path` or from lm-eval itself, whose data comes from the Hub."""
    include_path: Text | None = None
    """With `lm_eval`: folder with your own tasks (YAML and data), which is uploaded with the workflow. Paths of data
    files are relative to it."""
    num_fewshot: NaturalInt | None = None
    """With `lm_eval`: number of few-shot examples; default: as set by the task."""
    limit: PositiveInt | None = None
    """With `lm_eval`: maximum number of questions per task."""
    apply_chat_template: bool = False
    """With `exact_match` and `lm_eval`: apply the model's chat template to prompts; always on for chats."""
    run_code: bool = False
    """With `lm_eval`: run Python functions of tasks (`!function`), and model-generated code in tasks that execute it;
    requires a worker started with `--allow-code`."""

    @model_validator(mode="after")
    def _fitting(self) -> EvaluationSpec:
        faults: Faults = []
        required = "tasks" if self.type == "lm_eval" else "data"
        if getattr(self, required) is None:
            faults.append((required, f"is required with type: {self.type}", None))
        for key, types in _KEYS.items():
            if self.type not in types and key in self.model_fields_set and getattr(self, key) is not None:
                faults.append((key, f"is only for type: {' and '.join(types)}", "remove it"))
        faults += self._shape_faults()
        if faults:
            raise many_wrong(faults)
        return self

    def _shape_faults(self) -> Faults:
        plain = self.data is not None and self.data.shape.kind == "text"
        if plain and self.type == "exact_match":
            return [("data", "has no answers to compare with", "name prompt_column and response_column")]
        if plain and self.completion_only_loss:
            return [("completion_only_loss", "needs rows with a response, but these are plain text", "remove it")]
        return []

    @property
    def label(self) -> str:
        """Its name, or its type if it has none."""
        return self.name or self.type

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its metrics; those of lm-eval are known only after the run."""
        return tuple(self.metric(name) for name in _METRICS[self.type])

    def metric(self, name: str) -> str:
        """Return the name of a metric in the result."""
        return name if self.name is None else f"{self.name}_{name}"


class IntervalSpec(Block):
    """`spec.interval`: confidence intervals of the metrics."""

    confidence: Annotated[float, Field(gt=0.5, lt=1), NotBool] = 0.95
    """Confidence level."""
    resamples: Annotated[int, Field(ge=100, le=100_000), NotBool] = 1000
    """Number of bootstrap resamples."""
    seed: NaturalInt = 42
    """Random seed of the bootstrap."""


class GateSpec(Block):
    """`spec.gates[]`: threshold of a metric; `passed` in the result is true if all gates pass."""

    metric: Text
    """Name of the metric in the result, such as `accuracy`."""
    use: Literal["value", "low", "high"] = "value"
    """The value itself, or a bound of its interval; `low` with `at_least` requires a significant result."""
    at_least: Annotated[float, NotBool] | None = None
    """Minimum to pass; may refer to another task, such as `${base.result.metrics.accuracy.high}`."""
    at_most: Annotated[float, NotBool] | None = None
    """Maximum to pass."""

    @model_validator(mode="after")
    def _bounded(self) -> GateSpec:
        if self.at_least is None and self.at_most is None:
            raise wrong("has no threshold", "set at_least, at_most, or both")
        return self


class EvaluateTaskSpec(AnsweringTaskSpec):
    """`taskType: evaluate`: evaluates a model, a fine-tuned model or an adapter."""

    task_type: Literal["evaluate"] = Field(default="evaluate", alias="taskType")
    """`evaluate`"""
    evaluations: Annotated[tuple[EvaluationSpec, ...], Field(min_length=1, max_length=50)]
    """Evaluations to run."""
    interval: IntervalSpec = Field(default_factory=IntervalSpec)
    """Confidence intervals of the metrics."""
    gates: Annotated[tuple[GateSpec, ...], Field(max_length=50)] = ()
    """Thresholds of the metrics."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model or of a task is run."""
        return super().requires_code or any(each.run_code for each in self.evaluations)

    @property
    def environments(self) -> tuple[str, ...]:
        """That of lm-eval, if used; the model runs with Transformers."""
        return ("lm-eval",) if any(each.type == "lm_eval" for each in self.evaluations) else ()

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        del blocks
        return (*ALWAYS_LEFT, ITEMS_FOLDER)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        evaluations = blocks.get("evaluations") or ()
        gates = _gate_faults(blocks.get("gates") or (), evaluations)
        return [*super().faults(blocks), *_adapter_faults(blocks), *_name_faults(evaluations), *gates]


def _adapter_faults(blocks: Mapping[str, Any]) -> Faults:
    model: GeneratorModelSpec | None = blocks.get("model")
    runtime = [index for index, each in enumerate(model.adapters if model else ()) if each.apply == "runtime"]
    hint = "use one task per adapter and `tunefleet compare`, or apply: merge"
    return [(f"model.adapters.{index}", "is a second model to evaluate", hint) for index in runtime[1:]]


def _name_faults(evaluations: tuple[EvaluationSpec, ...]) -> Faults:
    faults: Faults = []
    taken: set[str] = set()
    labels: set[str] = set()
    for index, each in enumerate(evaluations):
        shared = [name for name in each.metrics if name in taken]
        # Metrics of all evaluations are stored in one mapping.
        if each.label in labels or shared:
            what = f"the name {show(each.label)}" if each.label in labels else f"metrics called {', '.join(shared)}"
            faults.append((f"evaluations.{index}", f"has {what}, like an earlier one", "give each its own name"))
        labels.add(each.label)
        taken.update(each.metrics)
    return faults


def _gate_faults(gates: tuple[GateSpec, ...], evaluations: tuple[EvaluationSpec, ...]) -> Faults:
    # The metric names of lm-eval are known only after the run.
    if not evaluations or any(each.type == "lm_eval" for each in evaluations):
        return []
    known = [name for each in evaluations for name in each.metrics]
    hint = f"available: {', '.join(known)}"
    return [
        (f"gates.{index}.metric", f"{show(gate.metric)} is not measured", hint)
        for index, gate in enumerate(gates)
        if gate.metric not in known
    ]
