"""`spec.data` of a supervised training: which columns of the rows become text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tunefleet.spec.base import PositiveInt, Text
from tunefleet.spec.options.rows import Faults, JsonlFile, RowsSpec

_ONE_SHAPE = "give text_field, or prompt_column with response_column, or messages_field"
Prompt = Annotated[str, Field(min_length=1)]


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

    @property
    def names(self) -> dict[str, str]:
        """What a column holds → its name; empty if nothing was said."""
        match self.kind:
            case "text":
                return {"text": self.text}
            case "pair":
                return {"prompt": self.prompt, "response": self.response}
            case "messages":
                return {"messages": self.messages}
        return {}


class JsonlSpec(JsonlFile):
    """`data.jsonl`: one JSON object a line; from the first place that is there.

    The order of the places is `download_url` or `url`, `path`, `worker_path`.
    """

    text_field: Text | None = None
    """Field with the whole text."""
    prompt_field: Text | None = None
    """Field with the prompt."""
    response_field: Text | None = None
    """Field with the response."""
    separator: str | None = None
    """Between prompt and response; by default `data.separator`."""


class TrainingData(RowsSpec):
    """`spec.data` of a training: exactly one source, and which columns become text."""

    jsonl: JsonlSpec | None = None
    """A JSONL file with its own field names."""
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
    streaming: bool = False
    """Read rows as the training goes, without loading them all; needs `training.max_steps`."""
    shuffle_buffer: PositiveInt = 10_000
    """With `streaming`: rows among which the next one is drawn."""

    def _faults(self) -> Faults:
        return [*super()._faults(), *self._shape_faults(), *self._streaming_faults()]

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
