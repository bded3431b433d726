"""`spec.data` of a training: where the rows come from, and which columns become text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, NotBool, PositiveInt, Text, many_wrong, only, wrong

Faults = list[tuple[str, str, str | None]]
SourceKind = Literal["hub", "file", "worker_file", "prompts", "artifact"]

_SOURCES = ("dataset_name", "path", "artifact", "jsonl", "jsonl_path", "prompts")
_SOURCE_HINT = f"give exactly one of {', '.join(_SOURCES)}"
_ONE_SHAPE = "give text_field, or prompt_column with response_column, or messages_field"


def _local(value: str) -> str:
    if "://" in value:
        raise wrong(
            "a file is not downloaded from an address in this version",
            "download it and name the local file, or push it with `tunefleet data push` and name it as data.artifact",
        )
    return value


Prompt = Annotated[str, Field(min_length=1)]
LocalName = Annotated[Text, AfterValidator(_local)]
"""A path on the machine that submits; the file travels with the submit."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """The one place that rows come from.

    Args:
        kind: `hub` (a hub id or a local folder), `file` (file or folder that travelled, or `builtin:NAME`),
            `worker_file` (lies on the worker), `prompts` (inline), `artifact`.
        pointer: Which key of the document named it, such as `data.path`; what a job's `inputs` are keyed by.
        value: Its value; empty for `prompts`.
    """

    kind: SourceKind
    pointer: str
    value: str


@dataclass(frozen=True, slots=True)
class TextShape:
    """How a row becomes text.

    Args:
        kind: `text` (loss on everything), `pair` (loss on the response), `messages` (loss on the assistant's turns),
            or `auto`: nothing was said, so the columns `messages`, else `prompt` and `response`, else `text` decide.
        separator: Between prompt and response.
    """

    kind: Literal["text", "pair", "messages", "auto"]
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"
    separator: str = "\n\n"


class JsonlSpec(Block):
    """`data.jsonl`: one JSON object a line."""

    path: LocalName | None = None
    """File on the machine that submits; it travels with the submit."""
    worker_path: Text | None = None
    """File on the worker's own disk; it does not travel."""
    text_field: Text | None = None
    """Field with the whole text."""
    prompt_field: Text | None = None
    """Field with the prompt."""
    response_field: Text | None = None
    """Field with the response."""
    separator: str | None = None
    """Between prompt and response; by default `data.separator`."""

    @model_validator(mode="after")
    def _one_place(self) -> JsonlSpec:
        if (self.path is None) == (self.worker_path is None):
            raise wrong("needs exactly one of path and worker_path")
        return self


class EvalSpec(Block):
    """`data.eval`: rows that are held out. Loss is measured on them before and after the training."""

    split: Text | None = None
    """Another split of the same dataset."""
    path: LocalName | None = None
    """Another file or folder; it travels with the submit."""
    fraction: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Part of the training rows, drawn by `training.seed` and taken out of them."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""

    @model_validator(mode="after")
    def _one_place(self) -> EvalSpec:
        if sum(value is not None for value in (self.split, self.path, self.fraction)) != 1:
            raise wrong("needs exactly one of split, path and fraction")
        return self


class TrainingData(Block):
    """`spec.data` of a training: exactly one source, and which columns become text."""

    dataset_name: Text | None = None
    """Hub id, or a local folder."""
    config_name: Text | None = None
    """Configuration of a hub dataset."""
    split: Text = "train"
    """Split of a dataset, with the hub's slices: `train[:5%]`."""
    revision: Text | None = None
    """Branch, tag or commit of a hub dataset."""
    trust_remote_code: Annotated[
        bool, only(False, "datasets that run code of their own cannot be loaded", "leave it out, or write false")
    ] = False
    """Always false: the `datasets` library no longer runs a dataset's own code."""
    path: LocalName | None = None
    """File (JSONL, JSON, CSV, Parquet), saved dataset folder or archive that travels with the submit, or
    `builtin:gsm8k`."""
    artifact: Text | None = None
    """Name of an artifact that was pushed with `tunefleet data push`."""
    jsonl: JsonlSpec | None = None
    """A JSONL file with its own field names."""
    jsonl_path: LocalName | None = None
    """The same as `jsonl.path`."""
    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1)] | None = None
    """Texts to train on, written here."""
    text_field: Text | None = None
    """Column with the whole text (loss on all of it)."""
    prompt_column: Text | None = None
    """Column with the prompt."""
    response_column: Text | None = None
    """Column with the response (loss on it only)."""
    prompt_field: Text | None = None
    """The same as `prompt_column`."""
    response_field: Text | None = None
    """The same as `response_column`."""
    messages_field: Text | None = None
    """Column with a chat: a list of `role` and `content` (loss on the assistant's turns)."""
    separator: str = "\n\n"
    """Between prompt and response."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""
    streaming: bool = False
    """Read rows as the training goes, without loading them all; needs `training.max_steps`."""
    shuffle_buffer: PositiveInt = 10_000
    """With `streaming`: rows among which the next one is drawn."""
    eval: EvalSpec | None = None
    """Rows that are held out."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingData:
        faults = [*self._source_faults(), *self._shape_faults(), *self._streaming_faults()]
        if faults:
            raise many_wrong(faults)
        return self

    def _source_faults(self) -> Faults:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        faults: Faults = []
        if not given:
            faults.append(("", "names no data", _SOURCE_HINT))
        faults.extend((name, f"cannot be given together with {given[0]}", _SOURCE_HINT) for name in given[1:])
        if given and "dataset_name" not in given:
            faults.extend(
                (name, "belongs to dataset_name", "leave it out, or name a hub dataset with dataset_name")
                for name in ("config_name", "revision")
                if getattr(self, name) is not None
            )
        if self.prompts is not None and self.eval is not None and self.eval.split is not None:
            faults.append(("eval.split", "inline prompts have no splits", "use eval.fraction or eval.path"))
        return faults

    def _streaming_faults(self) -> Faults:
        if not self.streaming:
            return []
        faults: Faults = []
        if self.prompts is not None:
            faults.append(("streaming", "inline prompts are there at once", "leave it out"))
        if "[" in self.split:
            faults.append(("split", "a stream has no slices", "name the whole split; max_samples takes its beginning"))
        if self.eval is not None and self.eval.fraction is not None:
            hint = "use eval.path or eval.split"
            faults.append(("eval.fraction", "cannot be drawn from rows that are not all there (streaming)", hint))
        return faults

    def _shape_faults(self) -> Faults:
        faults: Faults = []
        for one, other in (("prompt_column", "prompt_field"), ("response_column", "response_field")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                faults.append((other, f"means the same as {one}", "leave one of them out"))
        nested = self.jsonl or JsonlSpec.model_construct()
        prompt = self.prompt_column or self.prompt_field or nested.prompt_field
        response = self.response_column or self.response_field or nested.response_field
        if (prompt is None) != (response is None):
            present = self._named("prompt" if prompt is not None else "response")
            missing = "response_column" if response is None else "prompt_column"
            faults.append((present, f"needs {missing} beside it", _ONE_SHAPE))
        text = self.text_field or nested.text_field
        pair = prompt if prompt is not None else response
        if sum(value is not None for value in (text, pair, self.messages_field)) > 1:
            blamed = "messages_field" if self.messages_field is not None else self._named("text")
            faults.append((blamed, "says a second time how a row becomes text", _ONE_SHAPE))
        return faults

    def _named(self, word: str) -> str:
        for name in (f"{word}_column", f"{word}_field"):
            if getattr(self, name, None) is not None:
                return name
        return f"jsonl.{word}_field"

    @property
    def source(self) -> DataSource:
        """The one place that rows come from."""
        if self.prompts is not None:
            return DataSource("prompts", "data.prompts", "")
        if self.jsonl is not None:
            if self.jsonl.path is not None:
                return DataSource("file", "data.jsonl.path", self.jsonl.path)
            return DataSource("worker_file", "data.jsonl.worker_path", self.jsonl.worker_path or "")
        for name, kind in _SINGLE_SOURCES:
            value: str | None = getattr(self, name)
            if value is not None:
                return DataSource(kind, f"data.{name}", value)
        raise AssertionError("a validated block has a source")

    @property
    def shape(self) -> TextShape:
        """How a row becomes text, synonyms resolved."""
        nested = self.jsonl or JsonlSpec.model_construct()
        separator = self.separator if nested.separator is None else nested.separator
        prompt = nested.prompt_field or self.prompt_column or self.prompt_field
        response = nested.response_field or self.response_column or self.response_field
        text = nested.text_field or self.text_field
        if prompt is not None and response is not None:
            return TextShape("pair", prompt=prompt, response=response, separator=separator)
        if self.messages_field is not None:
            return TextShape("messages", messages=self.messages_field)
        if text is not None or self.prompts is not None:
            return TextShape("text", text=text or "text")
        return TextShape("auto", separator=separator)


_SINGLE_SOURCES: tuple[tuple[str, SourceKind], ...] = (
    ("dataset_name", "hub"),
    ("path", "file"),
    ("jsonl_path", "file"),
    ("artifact", "artifact"),
)
