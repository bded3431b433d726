"""`taskType: data`: makes a dataset out of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from tunefleet.spec.base import NotBool, Text, only
from tunefleet.spec.options.rows import DataSource, JsonlFile, RowsSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, SplittableTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.data_preview import PreviewSpec
from tunefleet.spec.tasks.data_steps import WHOLE, Step, StepBlock

_FORMATS: Final = ("jsonl", "parquet")


class SourceSpec(RowsSpec):
    """`sources[]`: rows to begin with; exactly one key says where they come from."""

    inline: ClassVar[str] = "rows"

    jsonl: JsonlFile | None = None
    """A JSONL file by path or address, such as `{url: "${stage.result.jsonl_export.url}"}`."""
    rows: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    """Rows, written here."""
    name: Text | None = None
    """What messages call it."""
    weight: Annotated[float, Field(gt=0), NotBool] = 1.0
    """Its share in a `mix`, against those of the others."""
    eval: Annotated[
        None, only(None, "has no effect here: nothing is trained", "add a step split: {test: 0.1} at the end")
    ] = None
    """Refused: a step `split` holds rows out."""

    def at(self, index: int) -> tuple[DataSource, ...]:
        """Return the places that its rows may come from, by where they stand in the spec.

        Args:
            index: Its place among the sources.
        """
        return tuple(
            replace(each, pointer=f"sources.{index}.{each.pointer.removeprefix('data.')}") for each in self.sources
        )


class DataTaskSpec(SplittableTaskSpec):
    """`taskType: data`: loads rows, changes them step by step, and writes a dataset."""

    task_type: Literal["data"] = Field(default="data", alias="taskType")
    """`data`"""
    sources: Annotated[tuple[SourceSpec, ...], Field(min_length=1, max_length=100)]
    """Where the rows come from; several stand one behind the other, unless a step mixes them."""
    steps: Annotated[tuple[Step, ...], Field(max_length=100)] = ()
    """What is done to them, in this order."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """Of the files: `train.jsonl`, with a split `test.jsonl`, too."""
    on_bad: Literal["fail", "drop"] = "fail"
    """A row that a step cannot work on: fail and name it, or leave it out and count it."""
    preview: PreviewSpec | None = None
    """Only look at the rows: which tokens a training would learn."""

    @property
    def split(self) -> StepBlock | None:
        """The step that splits, if there is one."""
        return next((step for step in self.steps if step.word == "split"), None)

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        if blocks.get("preview") is not None:
            return ALWAYS_LEFT
        suffix = blocks.get("format") or _FORMATS[0]
        steps: tuple[StepBlock, ...] = blocks.get("steps") or ()
        parts = next((tuple(step.split.parts) for step in steps if step.split is not None), ())
        return (*ALWAYS_LEFT, *(f"{name}.{suffix}" for name in ("train", *parts)))

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *_order_faults(blocks), *_weight_faults(blocks), *_parts_faults(blocks)]


def _order_faults(blocks: dict[str, Any]) -> Faults:
    words = [step.word for step in blocks.get("steps") or ()]
    faults: Faults = []
    for index, word in enumerate(words):
        if word == "split" and index < len(words) - 1:
            faults.append((f"steps.{index}", "split must be the last step", "move it to the end"))
        if word == "mix" and "mix" in words[:index]:
            faults.append((f"steps.{index}", "the sources are mixed already", "leave one of them out"))
    return faults


def _weight_faults(blocks: dict[str, Any]) -> Faults:
    sources: tuple[SourceSpec, ...] = blocks.get("sources") or ()
    mixes = any(step.word == "mix" for step in blocks.get("steps") or ())
    if mixes and len(sources) == 1:
        return [("sources", "a single one cannot be mixed", "add another, or leave the step mix out")]
    return [
        (f"sources.{index}.weight", "has no effect without a step mix", "add `mix: {}` to steps, or leave it out")
        for index, source in enumerate(sources)
        if "weight" in source.model_fields_set and not mixes
    ]


def _parts_faults(blocks: dict[str, Any]) -> Faults:
    """Find what cannot be done by workers that each have a part of the rows."""
    parallel, resources = blocks.get("parallel"), blocks.get("resources")
    several = (parallel is not None and parallel.enabled) or (resources is not None and resources.replicas > 1)
    if not several and blocks.get("shard") is None:
        return []
    hint = "leave parallel out, or make it a task of its own behind this one"
    faults: Faults = [
        (f"steps.{index}", f"{step.word} needs all rows, and each worker has a part", hint)
        for index, step in enumerate(blocks.get("steps") or ())
        if step.word in WHOLE
    ]
    if blocks.get("preview") is not None:
        faults.append(("preview", "shows the rows of one worker", "leave parallel out"))
    if blocks.get("format") == "parquet":
        faults.append(("format", "parts cannot be put together as Parquet", "write jsonl"))
    return faults
