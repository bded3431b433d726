"""`spec.data` of the trainings on preferences and on rewards: pairs, judged answers, prompts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tunefleet.spec.base import Block, Text
from tunefleet.spec.options.rows import Faults, JsonlFile, RowsSpec

Words = Annotated[str, Field(min_length=1)]


def columns_beside(data: RowsSpec, columns: tuple[str, ...]) -> Faults:
    """Find names of columns that nothing is read by."""
    if data.jsonl is None and getattr(data, data.inline) is None:
        return []
    instead = "name the fields in data.jsonl" if data.jsonl is not None else "leave it out"
    return [
        (name, "has no effect: the rows have no columns", instead) for name in columns if name in data.model_fields_set
    ]


class Preference(Block):
    """`data.preferences[]`: two answers to a prompt."""

    prompt: Words
    """The prompt."""
    chosen: Words
    """The better answer."""
    rejected: Words
    """The worse one."""


class PairJsonl(JsonlFile):
    """`data.jsonl` of a training on pairs: one JSON object a line, from the first of several places that is there."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    chosen_field: Text = "chosen"
    """Field with the better answer."""
    rejected_field: Text = "rejected"
    """Field with the worse one."""


class SeparatedRows(RowsSpec):
    """What rows with a prompt and an answer have beside their source."""

    separator: str = "\n\n"
    """Between prompt and answer, as in a supervised training; of texts, not of chats, which the model's template
    lays out."""


class PairData(SeparatedRows):
    """`spec.data` of a training on pairs of answers: exactly one source of them. There is no demo data.

    A prompt is a text or a list of messages; answers are what the prompt is. Without a prompt both answers are whole
    chats, whose common beginning is the prompt.
    """

    inline: ClassVar[str] = "preferences"

    jsonl: PairJsonl | None = None
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
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "chosen_column", "rejected_column"))]

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns of prompt, better and worse answer, wherever they were written."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.chosen_field, self.jsonl.rejected_field
        if self.preferences is not None:
            return "prompt", "chosen", "rejected"
        return self.prompt_column, self.chosen_column, self.rejected_column


class Judged(Block):
    """`data.examples[]`: an answer to a prompt, and whether it is good."""

    prompt: Words
    """The prompt."""
    completion: Words
    """The answer."""
    label: bool
    """Whether it is good."""


class JudgedJsonl(JsonlFile):
    """`data.jsonl` of a `kto` task: one JSON object a line, from the first of several places that is there."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    completion_field: Text = "completion"
    """Field with the answer."""
    label_field: Text = "label"
    """Field that says whether it is good: true or false."""


class JudgedData(SeparatedRows):
    """`spec.data` of a `kto` task: exactly one source of answers that are good or bad. There is no demo data.

    Rows with `chosen` and `rejected` instead count as two each, one good and one bad.
    """

    inline: ClassVar[str] = "examples"

    jsonl: JudgedJsonl | None = None
    """A JSONL file with its own field names."""
    examples: Annotated[tuple[Judged, ...], Field(min_length=1)] | None = None
    """Answers, written here."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""
    completion_column: Text = "completion"
    """Column with the answer."""
    label_column: Text = "label"
    """Column that says whether it is good: true or false."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "completion_column", "label_column"))]

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns of prompt, answer and label, wherever they were written."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.completion_field, self.jsonl.label_field
        if self.examples is not None:
            return "prompt", "completion", "label"
        return self.prompt_column, self.completion_column, self.label_column


class PromptJsonl(JsonlFile):
    """`data.jsonl` of a training on rewards: one JSON object a line, from the first of several places that is there."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    reference_field: Text | None = None
    """Field with the right answer, which rewards compare with."""


class AskedData(SeparatedRows):
    """`spec.data` of a training on rewards: exactly one source of prompts. There is no demo data."""

    jsonl: PromptJsonl | None = None
    """A JSONL file with its own field names."""
    prompts: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    """Prompts, written here."""
    prompt_column: Text = "prompt"
    """Column with the prompt: a text, or a list of messages."""
    reference_column: Text | None = None
    """Column with the right answer, which rewards compare with."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "reference_column"))]

    @property
    def columns(self) -> tuple[str, str | None]:
        """The columns of prompt and right answer, wherever they were written."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.reference_field
        if self.prompts is not None:
            return "text", None
        return self.prompt_column, self.reference_column


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
    separator: str = ""
    """Between prompt and answer, as in a supervised training; of texts, not of chats, which the model's template
    lays out."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column",))]
