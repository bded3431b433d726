"""Tokenizers named by steps: for token counts, and for chats as text. Loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunefleet.analysis.dataset.messages import Message, RowError
from tunefleet.errors import ModelError
from tunefleet.workloads.data_pipeline.conversion import Template, chatml


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
