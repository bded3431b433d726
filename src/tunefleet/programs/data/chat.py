"""Render a conversation with a tokenizer's chat template and say which characters the assistant wrote.

Three ways, in this order: the template marks the assistant's turns itself (`{% generation %}`); TRL knows the same
template with markers; or the conversation is rendered turn by turn, which works whenever a longer conversation starts
with the text of a shorter one. If none works the template is refused: learning everything would be silent and wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from tunefleet.errors import DataError, ModelError
from tunefleet.programs.data.shapes import Chat, Message

Span = tuple[int, int]
_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Args:
        tokenizer: Has the chat template.

    Raises:
        ModelError: If the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.chat_template is None:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template, so conversations cannot be rendered.",
                hint="Use an instruct model, or columns of prompts and responses.",
            )
        own = tokenizer.get_chat_template()
        known = None if _MARKERS.search(own) else _known_to_trl(tokenizer)
        self._tokenizer = tokenizer
        self._template: str = known or own
        self.marks_turns = _MARKERS.search(self._template) is not None

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None, *, ask: bool = False) -> str:
        """Render a conversation as text.

        Args:
            messages: The turns.
            tools: Schemas of the tools that the template may describe.
            ask: End with the header of the assistant's next turn.
        """
        return self._render(messages, tools, ask=ask, spans=False)[0]

    def render_with_spans(self, chat: Chat) -> tuple[str, list[Span]]:
        """Render a conversation and say which characters (start, end) are the assistant's.

        Raises:
            ModelError: If the template does not tell and turn-by-turn rendering does not either.
            DataError: If the template refuses the conversation.
        """
        if self.marks_turns:
            return self._render(chat.messages, chat.tools, ask=False, spans=True)
        text = self.render(chat.messages, chat.tools)
        spans = []
        for index, message in enumerate(chat.messages):
            if message["role"] == "assistant":
                before = self.render(chat.messages[:index], chat.tools, ask=True)
                after = self.render(chat.messages[: index + 1], chat.tools)
                if not (text.startswith(after) and after.startswith(before)):
                    raise ModelError(
                        f"The chat template of {self._tokenizer.name_or_path} rewrites earlier turns and has no "
                        "{% generation %} markers, so the assistant's tokens cannot be told from the others.",
                        hint="Add the markers to its chat_template.jinja, or set `training.completion_only_loss: "
                        "false` to learn whole conversations.",
                    )
                spans.append((len(before), len(after)))
        return text, spans

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, ask: bool, spans: bool
    ) -> tuple[str, list[Span]]:
        try:
            texts, found = render_jinja_template(
                conversations=[list(messages)],
                tools=tools,
                chat_template=self._template,
                return_assistant_tokens_mask=spans,
                add_generation_prompt=ask,
                **self._tokenizer.special_tokens_map,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise DataError(f"The chat template refuses a conversation: {error}.") from error
        return texts[0], [(start, end) for start, end in found[0]] if spans else []


def _known_to_trl(tokenizer: PreTrainedTokenizerBase) -> str | None:
    # Imports torch, for which a preview of a template with markers need not wait.
    from trl.chat_template_utils import get_training_chat_template

    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template
