"""The content of a message that only calls tools: an empty text for most chat templates, null for some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tunefleet.analysis.dataset.messages import Message
from tunefleet.errors import TunefleetError

_PROBE: Final = "zqxprobe"


class CallContent:
    """Gives null instead of an empty text beside tool calls to a template that writes the calls only then.

    Args:
        render: Applies the template to messages and tools.
    """

    def __init__(self, render: Callable[[list[Message], Sequence[Any] | None], str]) -> None:
        self._render = render
        self._wants_null: dict[bool, bool] = {}

    def fitted(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Message]:
        """Return messages as the template reads them."""
        bare = {at for at, each in enumerate(messages) if each.get("tool_calls") and not each.get("content")}
        if not bare:
            return list(messages)
        wanted = self._wants_null.get(bool(tools))
        if wanted is None:
            self._wants_null[bool(tools)] = False  # while the template is tried
            wanted = not self._writes("", tools) and self._writes(None, tools)
            self._wants_null[bool(tools)] = wanted
        return [{**each, "content": None} if wanted and at in bare else each for at, each in enumerate(messages)]

    def _writes(self, content: str | None, tools: Sequence[Any] | None) -> bool:
        call = {"type": "function", "id": "zqxprobe0", "function": {"name": _PROBE, "arguments": {}}}
        answer: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return _PROBE in self._render([{"role": "user", "content": "a"}, answer], tools)
        except TunefleetError:
            return False
