"""Makes prompts of messages, and tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from tunefleet.errors import InputError
from tunefleet.programs.engine.faults import RequestError
from tunefleet.programs.engine.protocol import Request


class Prompts:
    """The prompts of one model.

    Args:
        tokenizer: Of the model.
        context: The longest sequence that the model knows, in tokens, if it says so.
        ends: Tokens that end its answers.
        adapters: Names that requests may use.
    """

    def __init__(self, tokenizer: Any, context: int | None, ends: frozenset[int], adapters: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self._ends = ends
        self._adapters = tuple(adapters)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.tokenizer.chat_template)

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`.

        Raises:
            InputError: If the template refuses the messages.
        """
        if not self.has_template:
            return "\n".join(str(message.get("content") or "") for message in messages)
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **kwargs
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InputError(f"The model's chat template refuses the messages: {error}.") from error
        return text

    def tokens(self, request: Request) -> list[int]:
        """Return the tokens of a prompt.

        Raises:
            RequestError: If they leave no room for an answer, or there are none.
        """
        begin = self.tokenizer.bos_token
        # A chat template has written its special tokens already.
        special = not (begin and request.prompt.startswith(begin))
        found: list[int] = self.tokenizer(request.prompt, add_special_tokens=special, verbose=False)["input_ids"]
        if found and special and found[-1] in self._ends and len(found) > 1:
            found = found[:-1]
        if not found:
            raise RequestError(f"Prompt {request.key} is empty.", key=request.key, hint="Leave it out.")
        if self.context is not None and len(found) >= self.context:
            raise RequestError(
                f"Prompt {request.key} has {len(found)} tokens, and the model knows {self.context} with the answer.",
                key=request.key,
                hint="Shorten it, or take a model with a longer context.",
            )
        return found

    def limit(self, request: Request, tokens: Sequence[int]) -> int:
        """Return the longest answer that is possible, in tokens."""
        longest = request.sampling.max_tokens
        return longest if self.context is None else max(1, min(longest, self.context - len(tokens)))

    def check(self, request: Request) -> None:
        """Check what else can be wrong with a request.

        Raises:
            RequestError: If it names no adapter that is there.
        """
        if request.adapter is not None and request.adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise RequestError(
                f"Prompt {request.key} names the adapter {request.adapter!r}, which the engine does not have.",
                key=request.key,
                hint=f"It has: {known}.",
            )
