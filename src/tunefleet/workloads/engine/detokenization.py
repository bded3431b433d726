"""Turns tokens into text as they come, and finds the texts that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_TORN = "\ufffd"


class Writing:
    """The text of one answer so far.

    A token may hold only a part of a character: its text waits for the rest.
    """

    def __init__(self, tokenizer: Any, *, skip_special: bool, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stops = tuple(stops)
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._tokens: list[int] = []
        self._from = 0
        self._read = 0
        self._told = 0
        self.text = ""
        self.stopped = False

    def added(self, token: int) -> str:
        """Return what one more token would add to the text, with what still waits for the rest of its character."""
        before = self._decode(self._tokens[self._from : self._read])
        return self._decode([*self._tokens[self._from :], token])[len(before) :]

    def add(self, token: int, *, heed_stops: bool = True) -> None:
        """Take one more token."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._from : self._read])
        after = self._decode(self._tokens[self._from :])
        if len(after) <= len(before) or after.endswith(_TORN):
            return
        self._append(after[len(before) :], heed_stops=heed_stops)
        self._from, self._read = self._read, len(self._tokens)

    def finish(self) -> None:
        """Take what still waits for the rest of its character."""
        before = self._decode(self._tokens[self._from : self._read])
        self._append(self._decode(self._tokens[self._from :])[len(before) :], heed_stops=False)
        self._from = self._read = len(self._tokens)

    def piece(self, *, last: bool) -> str:
        """Return the text that nobody has been told yet."""
        end = len(self.text) if last or self.stopped else max(self._told, len(self.text) - self._held)
        found = self.text[self._told : end]
        self._told = end
        return found

    def _append(self, text: str, *, heed_stops: bool) -> None:
        if self.stopped:
            return
        start = max(0, len(self.text) - self._held)
        self.text += text
        if not heed_stops:
            return
        ends = [at for stop in self._stops if (at := self.text.find(stop, start)) >= 0]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
        )
        return text
