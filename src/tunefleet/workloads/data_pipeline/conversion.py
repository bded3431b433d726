"""The `convert` step: from the parts of a row to the wanted shape; and the tokenizers that steps name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tunefleet.analysis.dataset.messages import Message, RowError
from tunefleet.analysis.dataset.parts import Parts
from tunefleet.analysis.dataset.shapes import Recognized, recognize
from tunefleet.errors import ModelError
from tunefleet.spec.tasks.data_steps import ConvertSpec
from tunefleet.workloads.data_pipeline.row_types import value_of

# Renders a chat as text.
Template = Callable[[Sequence[Message]], str]
Say = Callable[[str], None]


class Conversion:
    """Converts the rows of one stream; the shape is reported once per source."""

    def __init__(self, wanted: ConvertSpec, template: Template, say: Say) -> None:
        self._wanted = wanted
        self._template = template
        self._say = say
        self._shapes: dict[int, Recognized] = {}

    def converted(self, values: Mapping[str, Any], source: int, origin: str) -> dict[str, Any]:
        """Return the row in its new shape.

        Args:
            source: Number of its source; each source may have another shape.
        """
        shape = self._shapes.get(source)
        if shape is None:
            shape = self._shapes[source] = recognize(values, self._wanted.origin, origin)
            self._say(f"{origin}: recognized {shape.sentence}; converting to {self._wanted.to}.")
        parts = shape.read(values, self._wanted.separator)
        if self._wanted.system is not None and not any(each["role"] == "system" for each in parts.before):
            system = {"role": "system", "content": self._wanted.system}
            parts = replace(parts, before=(system, *parts.before))
        made = _WRITERS[self._wanted.to](parts, self._wanted, self._template)
        if parts.tools is not None and "messages" in made:
            made["tools"] = parts.tools
        kept = {name: value_of(values, name) for name in self._wanted.keep or ()}
        return {**kept, **made}


def chatml(messages: Sequence[Message]) -> str:
    """Write a chat as ChatML."""
    return "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)


def _messages(parts: Parts, wanted: ConvertSpec, template: Template) -> dict[str, Any]:
    del wanted, template
    _no_text(parts)
    # Answers in the prompt are context and must not be trained.
    before = [_context(each) if parts.prompted else each for each in parts.before]
    return {"messages": [*before, *parts.answer]}


def _context(message: Message) -> Message:
    return {**message, "weight": 0} if message["role"] == "assistant" else message


def _pair(parts: Parts, wanted: ConvertSpec, template: Template) -> dict[str, Any]:
    del template
    _no_text(parts)
    return {"prompt": _one_turn(parts, wanted.separator), "response": _one_answer(parts.answer)}


def _text(parts: Parts, wanted: ConvertSpec, template: Template) -> dict[str, Any]:
    if parts.text is not None:
        return {"text": parts.text}
    if parts.chat or wanted.tokenizer is not None:
        return {"text": template([*parts.before, *parts.answer])}
    return {"text": wanted.separator.join(each["content"] for each in (*parts.before, *parts.answer))}


def _preference(parts: Parts, wanted: ConvertSpec, template: Template) -> dict[str, Any]:
    del template
    if parts.worse is None:
        raise RowError("it has no rejected answer")
    if parts.chat:
        return {"prompt": list(parts.before), "chosen": list(parts.answer), "rejected": list(parts.worse)}
    prompt = _one_turn(parts, wanted.separator)
    return {"prompt": prompt, "chosen": _one_answer(parts.answer), "rejected": _one_answer(parts.worse)}


def _no_text(parts: Parts) -> None:
    if parts.text is not None:
        raise RowError("it is plain text, in which the answer cannot be identified")


def _one_turn(parts: Parts, separator: str) -> str:
    """Return the messages before the answer as one text: a system message, and one user turn."""
    turns = [each for each in parts.before if each["role"] != "system"]
    if len(turns) != 1 or turns[0]["role"] != "user":
        raise RowError(
            f"it has {len(turns)} turns before its last answer, and one prompt is one turn: convert to messages"
        )
    return separator.join(each["content"] for each in parts.before)


def _one_answer(messages: Sequence[Message]) -> str:
    if len(messages) != 1 or messages[0].get("tool_calls"):
        raise RowError("its answer is more than one text: convert to messages")
    return str(messages[0]["content"])


_WRITERS: Final[dict[str, Callable[[Parts, ConvertSpec, Template], dict[str, Any]]]] = {
    "messages": _messages,
    "prompt_response": _pair,
    "text": _text,
    "preference": _preference,
}


class Tokenizers:
    """The tokenizers of one task.

    Args:
        local: Name → its folder on this machine, for uploaded tokenizers.
    """

    def __init__(self, local: Mapping[str, str]) -> None:
        self._local = dict(local)
        self._loaded: dict[str, Any] = {}

    def counter(self, name: str | None) -> Callable[[str], int]:
        """Return a function that counts the tokens of a text, without special tokens."""

        def count(text: str) -> int:
            return len(self._of(name or "")(text, add_special_tokens=False)["input_ids"])

        return count

    def template(self, name: str | None) -> Template:
        """Return a function that renders a chat as text: a model's chat template, or ChatML."""
        if name is None:
            return chatml

        def write(messages: Sequence[Message]) -> str:
            tokenizer = self._of(name)
            if not tokenizer.chat_template:
                raise ModelError(
                    f"The tokenizer of {name} has no chat template.",
                    hint="Name a model that was trained to chat, or omit the tokenizer for ChatML.",
                )
            try:
                return str(tokenizer.apply_chat_template(list(messages), tokenize=False))
            except (ValueError, TypeError, KeyError) as error:
                raise RowError(f"the chat template of {name} rejects it: {error}") from None

        return write

    def _of(self, name: str) -> Any:
        if name not in self._loaded:
            # Transformers takes seconds to import, and most tasks need no tokenizer.
            from tunefleet.workloads.common import base_model

            source = base_model.locate(name, self._local.get(name))
            self._loaded[name] = base_model.load_tokenizer(source)
        return self._loaded[name]
