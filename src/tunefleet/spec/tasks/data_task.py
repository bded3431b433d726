"""`taskType: data`: builds a dataset from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from tunefleet.spec.base import Block, ModelName, NotBool, PositiveInt, Text, only, wrong
from tunefleet.spec.options.data import TextShape
from tunefleet.spec.options.rows import DataSource, JsonlFile, RowsSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, SplittableTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.data_steps import WHOLE, Step, StepBlock

_FORMATS: Final = ("jsonl", "parquet")
_ONE_SHAPE = "set text_field, or prompt_column with response_column, or messages_field"


class PreviewSpec(Block):
    """`preview`: dry run. The result shows which tokens would be trained; no files are written."""

    model: ModelName
    """Model whose tokenizer and chat template are used: Hub id, local folder or `builtin:NAME`."""
    rows: Annotated[int, Field(ge=1, le=50), NotBool] = 5
    """Number of rows to show."""
    max_seq_length: PositiveInt = 1024
    """Max sequence length in tokens; longer rows are truncated."""
    completion_only_loss: bool | None = None
    """Train only on responses; default: on if the rows have responses."""
    text_field: Text | None = None
    """Column with the full text."""
    prompt_column: Text | None = None
    """Column with the prompt."""
    response_column: Text | None = None
    """Column with the response."""
    messages_field: Text | None = None
    """Column with a chat."""
    separator: str = "\n\n"
    """Text between prompt and response."""
    as_chat: bool = False
    """Read prompt and response as a chat, with the model's chat template."""

    @model_validator(mode="after")
    def _one_shape(self) -> PreviewSpec:
        if (self.prompt_column is None) != (self.response_column is None):
            present, missing = ("prompt", "response") if self.response_column is None else ("response", "prompt")
            raise wrong(f"also needs {missing}_column", _ONE_SHAPE, at=f"{present}_column")
        if sum(each is not None for each in (self.text_field, self.prompt_column, self.messages_field)) > 1:
            raise wrong("has several keys that define how a row becomes text", _ONE_SHAPE)
        return self

    @property
    def shape(self) -> TextShape:
        """How a row becomes text."""
        if self.prompt_column is not None and self.response_column is not None:
            return TextShape("pair", prompt=self.prompt_column, response=self.response_column,
                             separator=self.separator, as_chat=self.as_chat)  # fmt: skip
        if self.messages_field is not None:
            return TextShape("messages", messages=self.messages_field)
        if self.text_field is not None:
            return TextShape("text", text=self.text_field)
        return TextShape("auto", separator=self.separator, as_chat=self.as_chat)


class SourceSpec(RowsSpec):
    """`sources[]`: input rows; exactly one key selects the source."""

    inline: ClassVar[str] = "rows"

    jsonl: JsonlFile | None = None
    """JSONL file by path or URL, such as `{url: "${stage.result.jsonl_export.url}"}`."""
    rows: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    """Inline rows."""
    name: Text | None = None
    """Name of the source in messages."""
    weight: Annotated[float, Field(gt=0), NotBool] = 1.0
    """Relative weight of the source in a `mix`."""
    eval: Annotated[None, only(None, "has no effect in a data task", "add a step split: {test: 0.1} at the end")] = None
    """Not supported: use a `split` step."""

    def at(self, index: int) -> tuple[DataSource, ...]:
        """Return its sources with their pointers in the spec.

        Args:
            index: Its index in `sources`.
        """
        return tuple(
            replace(each, pointer=f"sources.{index}.{each.pointer.removeprefix('data.')}") for each in self.sources
        )


class DataTaskSpec(SplittableTaskSpec):
    """`taskType: data`: loads rows, transforms them in steps, and writes a dataset."""

    task_type: Literal["data"] = Field(default="data", alias="taskType")
    """`data`"""
    sources: Annotated[tuple[SourceSpec, ...], Field(min_length=1, max_length=100)]
    """Input sources; several are concatenated, unless a step mixes them."""
    steps: Annotated[tuple[Step, ...], Field(max_length=100)] = ()
    """Steps, applied in order."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """Format of the files: `train.jsonl`, and with a split also `test.jsonl`."""
    on_bad: Literal["fail", "drop"] = "fail"
    """What to do with a row that a step cannot process: fail and name it, or drop and count it."""
    preview: PreviewSpec | None = None
    """Dry run: show which tokens would be trained."""

    @property
    def split(self) -> StepBlock | None:
        """The `split` step, if there is one."""
        return next((step for step in self.steps if step.word == "split"), None)

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        if blocks.get("preview") is not None:
            return ALWAYS_LEFT
        suffix = blocks.get("format") or _FORMATS[0]
        steps: tuple[StepBlock, ...] = blocks.get("steps") or ()
        parts = next((tuple(step.split.parts) for step in steps if step.split is not None), ())
        return (*ALWAYS_LEFT, *(f"{name}.{suffix}" for name in ("train", *parts)))

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *_order_faults(blocks), *_weight_faults(blocks), *_parts_faults(blocks)]


def _order_faults(blocks: dict[str, Any]) -> Faults:
    words = [step.word for step in blocks.get("steps") or ()]
    faults: Faults = []
    for index, word in enumerate(words):
        # After a split there are several outputs, but steps work on one.
        if word == "split" and index < len(words) - 1:
            faults.append((f"steps.{index}", "split must be the last step", "move it to the end"))
        if word == "mix" and "mix" in words[:index]:
            faults.append((f"steps.{index}", "the sources are already mixed", "remove one of them"))
    return faults


def _weight_faults(blocks: dict[str, Any]) -> Faults:
    sources: tuple[SourceSpec, ...] = blocks.get("sources") or ()
    mixes = any(step.word == "mix" for step in blocks.get("steps") or ())
    if mixes and len(sources) == 1:
        return [("sources", "a single source cannot be mixed", "add another one, or remove the step mix")]
    return [
        (f"sources.{index}.weight", "has no effect without a step mix", "add `mix: {}` to steps, or remove it")
        for index, source in enumerate(sources)
        if "weight" in source.model_fields_set and not mixes
    ]


def _parts_faults(blocks: dict[str, Any]) -> Faults:
    """Find steps and options that do not work on shards."""
    parallel, resources = blocks.get("parallel"), blocks.get("resources")
    several = (parallel is not None and parallel.enabled) or (resources is not None and resources.replicas > 1)
    if not several and blocks.get("shard") is None:
        return []
    hint = "remove parallel, or move the step to a separate task after this one"
    faults: Faults = [
        (f"steps.{index}", f"{step.word} needs all rows, but each worker has a shard", hint)
        for index, step in enumerate(blocks.get("steps") or ())
        # Each worker sees only its shard, so these steps would give wrong results.
        if step.word in WHOLE
    ]
    if blocks.get("preview") is not None:
        faults.append(("preview", "cannot be combined with parallel", "remove parallel"))
    if blocks.get("format") == "parquet":
        faults.append(("format", "shards cannot be joined as Parquet", "use jsonl"))
    return faults
