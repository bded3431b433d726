"""Tokenizers that a step names: they count the tokens of texts, and write chats as text. Loaded at their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunefleet.analysis.dataset.messages import Message, RowError
from tunefleet.errors import ModelError
from tunefleet.workloads.data_pipeline.conversion import Template, chatml


class Tokenizers:
    """The tokenizers of one task.

    Args:
        local: Name → the folder that stands for it on this machine, of those that were uploaded.
    """

    def __init__(self, local: Mapping[str, str]) -> None:
        self._local = dict(local)
        self._loaded: dict[str, Any] = {}

    def counter(self, name: str | None) -> Callable[[str], int]:
        """Return what counts the tokens of a text, special ones left out."""

        def count(text: str) -> int:
            return len(self._of(name or "")(text, add_special_tokens=False)["input_ids"])

        return count

    def template(self, name: str | None) -> Template:
        """Return what writes a chat as text: the chat template of a model, else ChatML."""
        if name is None:
            return chatml

        def write(messages: Sequence[Message]) -> str:
            tokenizer = self._of(name)
            if not tokenizer.chat_template:
                raise ModelError(
                    f"The tokenizer of {name} has no chat template.",
                    hint="Name a model that was trained to chat, or leave the tokenizer out for ChatML.",
                )
            try:
                return str(tokenizer.apply_chat_template(list(messages), tokenize=False))
            except (ValueError, TypeError, KeyError) as error:
                raise RowError(f"the chat template of {name} does not take it: {error}") from None

        return write

    def _of(self, name: str) -> Any:
        if name not in self._loaded:
            # Transformers takes seconds to import, and most tasks need no tokenizer.
            from tunefleet.workloads.common import base_model

            source = base_model.locate(name, self._local.get(name))
            self._loaded[name] = base_model.load_tokenizer(source)
        return self._loaded[name]
