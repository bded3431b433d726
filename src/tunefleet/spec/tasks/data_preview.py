"""`preview` of a `data` task: shows how training would tokenize the rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tunefleet.spec.base import Block, ModelName, NotBool, PositiveInt, Text, wrong
from tunefleet.spec.options.data import TextShape

_ONE_SHAPE = "give text_field, or prompt_column with response_column, or messages_field"


class PreviewSpec(Block):
    """`preview`: dry run. The result shows which tokens would be trained; no files are written."""

    model: ModelName
    """Model whose tokenizer and chat template are used: Hub id, local folder or `builtin:NAME`."""
    rows: Annotated[int, Field(ge=1, le=50), NotBool] = 5
    """Number of rows to show."""
    max_seq_length: PositiveInt = 1024
    """Max sequence length in tokens; longer rows are truncated."""
    completion_only_loss: bool | None = None
    """Train only on responses; default: if the rows have responses."""
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
