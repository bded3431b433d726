"""Renders messages to prompts, and tokenizes prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunefleet.errors import InputError
from tunefleet.workloads.data.chat_template import CallContent, PromptTokenizer
from tunefleet.workloads.engine.protocol import Request
from tunefleet.workloads.faults import RequestError


class Prompts:
    """Rendering and tokenization with the tokenizer of one model."""

    def __init__(
        self, tokenizer: Any, context: int | None, adapters: Sequence[str], vocabulary: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self._tokens = PromptTokenizer(tokenizer)
        self._calls = CallContent(lambda messages, tools: self._apply(messages, {"tools": tools} if tools else {}))
        self._adapters = tuple(adapters)
        self._vocabulary = vocabulary

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.tokenizer.chat_template)

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`.

        Raises:
            InputError: If the template rejects the messages.
        """
        if not self.has_template:
            return "\n".join(str(message.get("content") or "") for message in messages)
        return self._apply(self._calls.fitted(messages, kwargs.get("tools")), kwargs)

    def _apply(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # a template may raise anything, by `raise_exception` or by an error in it
            raise InputError(f"The model's chat template rejects the messages: {error}.") from error
        return text

    def tokens(self, request: Request) -> list[int]:
        """Return the tokens of a prompt.

        Raises:
            RequestError: If the prompt is empty or too long, or the model has no embedding for a token.
        """
        (found,) = self._tokens.prompts([request.prompt], rendered=request.rendered)
        if not found:
            raise RequestError(f"Prompt {request.key} is empty.", key=request.key, hint="Remove it.")
        if self._vocabulary is not None and max(found) >= self._vocabulary:
            token = self.tokenizer.convert_ids_to_tokens([max(found)])[0]
            raise RequestError(
                f"Prompt {request.key} has the token {token!r} (id {max(found)}), but the model has embeddings for "
                f"{self._vocabulary:,} tokens.",
                key=request.key,
                hint="Use the tokenizer that belongs to the model.",
            )
        if self.context is not None and len(found) >= self.context:
            raise RequestError(
                # `workloads.chat` parses this message.
                f"Prompt {request.key} has {len(found)} tokens, but the model supports {self.context} with the answer.",
                key=request.key,
                hint="Shorten it, or use a model with a longer context.",
            )
        return found

    def limit(self, request: Request, tokens: Sequence[int]) -> int:
        """Return the maximum answer length in tokens."""
        longest = request.sampling.max_tokens
        return longest if self.context is None else max(1, min(longest, self.context - len(tokens)))

    def check(self, request: Request) -> None:
        """Check the adapter of a request.

        Raises:
            RequestError: If the engine does not have it.
        """
        if request.adapter is not None and request.adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise RequestError(
                f"Prompt {request.key} names the adapter {request.adapter!r}, which the engine does not have.",
                key=request.key,
                hint=f"It has: {known}.",
            )
