"""`spec.data` of preference and reward tasks: pairs, labeled answers, prompts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tunefleet.spec.base import Block, Text
from tunefleet.spec.options.rows import Faults, JsonlFile, RowsSpec

Words = Annotated[str, Field(min_length=1)]


def columns_beside(data: RowsSpec, columns: tuple[str, ...]) -> Faults:
    """Find column keys that have no effect because the rows have no columns."""
    if data.jsonl is None and getattr(data, data.inline) is None:
        return []
    instead = "name the fields in data.jsonl" if data.jsonl is not None else "remove it"
    return [
        (name, "has no effect: the rows have no columns", instead) for name in columns if name in data.model_fields_set
    ]


class Preference(Block):
    """`data.preferences[]`: a prompt with two answers."""

    prompt: Words
    """The prompt."""
    chosen: Words
    """The chosen (better) answer."""
    rejected: Words
    """The rejected (worse) answer."""


class PairJsonl(JsonlFile):
    """`data.jsonl` of preference pairs: one JSON object per line; the first source that exists is used."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    chosen_field: Text = "chosen"
    """Field with the chosen answer."""
    rejected_field: Text = "rejected"
    """Field with the rejected answer."""


class SeparatedRows(RowsSpec):
    """Rows with a prompt and an answer."""

    separator: str = "\n\n"
    """Text between prompt and answer, as in supervised fine-tuning; not used for chats, which the model's chat template
    formats."""


class PairData(SeparatedRows):
    """`spec.data` with preference pairs: exactly one source. There is no demo data.

    A prompt is a text or a list of messages, and the answers have the same form. Without a prompt both answers are
    complete chats, whose common prefix is the prompt.
    """

    inline: ClassVar[str] = "preferences"

    jsonl: PairJsonl | None = None
    """A JSONL file with its own field names."""
    preferences: Annotated[tuple[Preference, ...], Field(min_length=1)] | None = None
    """Inline pairs."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""
    chosen_column: Text = "chosen"
    """Column with the chosen answer."""
    rejected_column: Text = "rejected"
    """Column with the rejected answer."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "chosen_column", "rejected_column"))]

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns of prompt, chosen and rejected answer for the given source."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.chosen_field, self.jsonl.rejected_field
        if self.preferences is not None:
            return "prompt", "chosen", "rejected"
        return self.prompt_column, self.chosen_column, self.rejected_column


class Judged(Block):
    """`data.examples[]`: a prompt with a labeled answer."""

    prompt: Words
    """The prompt."""
    completion: Words
    """The answer."""
    label: bool
    """Whether the answer is desirable."""


class JudgedJsonl(JsonlFile):
    """`data.jsonl` of a `kto` task: one JSON object per line; the first source that exists is used."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    completion_field: Text = "completion"
    """Field with the answer."""
    label_field: Text = "label"
    """Field with the label: true for desirable, false for undesirable."""


class LabelledData(SeparatedRows):
    """`spec.data` of a `kto` task: exactly one source of labeled answers. There is no demo data.

    A row with `chosen` and `rejected` counts as two rows, one desirable and one undesirable.
    """

    inline: ClassVar[str] = "examples"

    jsonl: JudgedJsonl | None = None
    """A JSONL file with its own field names."""
    examples: Annotated[tuple[Judged, ...], Field(min_length=1)] | None = None
    """Inline answers."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""
    completion_column: Text = "completion"
    """Column with the answer."""
    label_column: Text = "label"
    """Column with the label: true for desirable, false for undesirable."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "completion_column", "label_column"))]

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns of prompt, answer and label for the given source."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.completion_field, self.jsonl.label_field
        if self.examples is not None:
            return "prompt", "completion", "label"
        return self.prompt_column, self.completion_column, self.label_column


class PromptJsonl(JsonlFile):
    """`data.jsonl` of prompts: one JSON object per line; the first source that exists is used."""

    prompt_field: Text = "prompt"
    """Field with the prompt."""
    reference_field: Text | None = None
    """Field with the reference answer that rewards compare with."""


class PromptRows(SeparatedRows):
    """`spec.data` of a `grpo` or `rloo` task: exactly one source of prompts. There is no demo data."""

    jsonl: PromptJsonl | None = None
    """A JSONL file with its own field names."""
    prompts: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    """Inline prompts."""
    prompt_column: Text = "prompt"
    """Column with the prompt: a text, or a list of messages."""
    reference_column: Text | None = None
    """Column with the reference answer that rewards compare with."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column", "reference_column"))]

    @property
    def columns(self) -> tuple[str, str | None]:
        """The columns of prompt and reference answer for the given source."""
        if self.jsonl is not None:
            return self.jsonl.prompt_field, self.jsonl.reference_field
        if self.prompts is not None:
            return "text", None
        return self.prompt_column, self.reference_column


class PpoJsonl(JsonlFile):
    """`data.jsonl` of a `ppo` task: one JSON object per line; the first source that exists is used."""

    query_field: Text = "query"
    """Field with the prompt."""
    response_field: Text | None = None
    """Field with an existing answer, which is appended to the prompt."""


class PpoData(RowsSpec):
    """`spec.data` of a `ppo` task: exactly one source of prompts. There is no demo data."""

    jsonl: PpoJsonl | None = None
    """A JSONL file with its own field names."""
    prompts: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    """Inline prompts."""
    prompt_column: Text = "prompt"
    """Column with the prompt."""
    separator: str = ""
    """Text between prompt and answer, as in supervised fine-tuning; not used for chats, which the model's chat template
    formats."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *columns_beside(self, ("prompt_column",))]
