"""`spec.data` of a supervised fine-tune: which columns of the rows become text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tunefleet.spec.base import PositiveInt, Text
from tunefleet.spec.options.rows import Faults, JsonlFile, RowsSpec

_ONE_SHAPE = "set text_field, or prompt_column with response_column, or messages_field"
Prompt = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class TextShape:
    """How a row becomes text.

    Args:
        kind: `text` (all tokens trained), `pair` (response trained), `messages` (assistant turns trained),
            or `auto`: not set, detected from the columns `messages`, else `prompt` and `response`, else `text`.
        separator: Between prompt and response.
        as_chat: Whether prompt and response become a chat, which the model's chat template formats.
    """

    kind: Literal["text", "pair", "messages", "auto"]
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"
    separator: str = "\n\n"
    as_chat: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Role of a column → its name; empty with `auto`."""
        match self.kind:
            case "text":
                return {"text": self.text}
            case "pair":
                return {"prompt": self.prompt, "response": self.response}
            case "messages":
                return {"messages": self.messages}
        return {}


class JsonlSpec(JsonlFile):
    """`data.jsonl`: a file with one JSON object per line. The first source that exists is used.

    Sources are tried in the order `download_url` or `url`, `path`, `worker_path`.
    """

    text_field: Text | None = None
    """Field with the full text."""
    prompt_field: Text | None = None
    """Field with the prompt."""
    response_field: Text | None = None
    """Field with the response."""
    separator: str | None = None
    """Text between prompt and response; default: `data.separator`."""


class TrainingData(RowsSpec):
    """`spec.data` of a fine-tune: exactly one source, and which columns become text."""

    jsonl: JsonlSpec | None = None
    """A JSONL file with its own field names."""
    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1)] | None = None
    """Inline texts to train on."""
    text_field: Text | None = None
    """Column with the full text; all tokens are trained."""
    prompt_column: Text | None = None
    """Column with the prompt."""
    response_column: Text | None = None
    """Column with the response; only its tokens are trained."""
    prompt_field: Text | None = None
    """Alias of `prompt_column`."""
    response_field: Text | None = None
    """Alias of `response_column`."""
    messages_field: Text | None = None
    """Column with a chat, a list of messages with `role` and `content`; only the assistant's turns are trained."""
    separator: str = "\n\n"
    """Text between prompt and response."""
    as_chat: bool = False
    """Train prompt and response as a chat, with the model's chat template instead of `separator`. Set it for instruct
    models: they are used through the template."""
    streaming: bool = False
    """Stream rows during training instead of loading all of them; requires `training.max_steps`."""
    shuffle_buffer: PositiveInt = 10_000
    """With `streaming`: size of the shuffle buffer, in rows."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *self._shape_faults(), *self._streaming_faults()]

    def _streaming_faults(self) -> Faults:
        if not self.streaming:
            return []
        faults: Faults = []
        if self.prompts is not None:
            faults.append(("streaming", "has no effect on inline prompts", "remove it"))
        # `datasets` cannot slice a split that it streams.
        if "[" in self.split:
            faults.append(
                (
                    "split",
                    "slices are not supported with streaming",
                    "name the full split; max_samples takes its beginning",
                )
            )
        if self.eval is not None and self.eval.fraction is not None:
            hint = "use eval.path or eval.split"
            faults.append(("eval.fraction", "is not supported with streaming", hint))
        return faults

    def _shape_faults(self) -> Faults:
        faults: Faults = []
        for one, other in (("prompt_column", "prompt_field"), ("response_column", "response_field")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                faults.append((other, f"is an alias of {one}", "remove one of them"))
        nested = self.jsonl or JsonlSpec.model_construct()
        prompt = self.prompt_column or self.prompt_field or nested.prompt_field
        response = self.response_column or self.response_field or nested.response_field
        if (prompt is None) != (response is None):
            present = self._named("prompt" if prompt is not None else "response")
            missing = "response_column" if response is None else "prompt_column"
            faults.append((present, f"also needs {missing}", _ONE_SHAPE))
        text = self.text_field or nested.text_field
        pair = prompt if prompt is not None else response
        if self.as_chat and (text is not None or self.messages_field is not None or self.prompts is not None):
            faults.append(("as_chat", "has no effect without prompt and response columns", "remove it"))
        if sum(value is not None for value in (text, pair, self.messages_field)) > 1:
            key = "messages_field" if self.messages_field is not None else self._named("text")
            faults.append((key, "conflicts with another key that defines how a row becomes text", _ONE_SHAPE))
        return faults

    def _named(self, word: str) -> str:
        for name in (f"{word}_column", f"{word}_field"):
            if getattr(self, name, None) is not None:
                return name
        return f"jsonl.{word}_field"

    @property
    def shape(self) -> TextShape:
        """How a row becomes text, with aliases resolved."""
        nested = self.jsonl or JsonlSpec.model_construct()
        separator = self.separator if nested.separator is None else nested.separator
        # Field names of the JSONL block take precedence over those of `data`.
        prompt = nested.prompt_field or self.prompt_column or self.prompt_field
        response = nested.response_field or self.response_column or self.response_field
        text = nested.text_field or self.text_field
        if prompt is not None and response is not None:
            return TextShape("pair", prompt=prompt, response=response, separator=separator, as_chat=self.as_chat)
        if self.messages_field is not None:
            return TextShape("messages", messages=self.messages_field)
        # Inline prompts are rows with a single column `text`.
        if text is not None or self.prompts is not None:
            return TextShape("text", text=text or "text")
        return TextShape("auto", separator=separator, as_chat=self.as_chat)
