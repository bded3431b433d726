"""Tokenizes prompts and answers separately, so that a prompt has the same tokens as at inference."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.workloads.data.formats import Content, Pair, Place
from tunefleet.workloads.data.tokenization import Encoder

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt and an answer, both texts or both chats, with the row they come from."""

    prompt: Content
    answer: Content
    tools: list[Any] | None
    place: Place


@dataclass(slots=True)
class Counts:
    """Counts of used, dropped and truncated rows, and of tokens."""

    rows: int = 0
    dropped: int = 0
    truncated: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Limits:
    """The maximum length of a sequence and of its prompt."""

    whole: int
    prompt: int | None = None
    counts: Counts = field(default_factory=Counts)

    def cut(self, prompt: list[int], answers: list[list[int]]) -> tuple[list[int], list[list[int]]] | None:
        """Truncate a prompt and its answers; returns None if nothing is left of an answer."""
        # The end of a prompt holds the question, so it is truncated on the left.
        kept = prompt if self.prompt is None else prompt[-self.prompt :]
        room = self.whole - len(kept)
        if room <= 0 or not all(answers):
            self.counts.dropped += 1
            return None
        shorter = [answer[:room] for answer in answers]
        self.counts.rows += 1
        self.counts.truncated += shorter != answers or len(kept) < len(prompt)
        self.counts.tokens += sum(len(kept) + len(answer) for answer in shorter)
        return kept, shorter


class Exchanges:
    """Tokenizes exchanges, texts or chats."""

    def __init__(self, encoder: Encoder, notes: Notes) -> None:
        self._encoder = encoder
        self._notes = notes

    def encode(self, exchanges: Iterable[Exchange]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tokens of prompt and answer of each exchange.

        Raises:
            ModelError: If chats cannot be rendered, or the rendered answer does not follow the prompt.
            DataError: If the chat template rejects a chat.
        """
        source = iter(exchanges)
        while batch := list(itertools.islice(source, _AT_ONCE)):
            texts = [each for each in batch if isinstance(each.prompt, str)]
            pairs = [Pair(str(each.prompt), str(each.answer), each.place) for each in texts]
            encoded = iter(self._encoder.encode(pairs, self._notes) if pairs else ())
            for each in batch:
                if isinstance(each.prompt, list):
                    assert isinstance(each.answer, list), "a chat is answered by messages"
                    yield self._encoder.exchange(each.prompt, each.answer, each.tools, self._notes, each.place)
                    continue
                tokens = next(encoded)
                begin = tokens.trained.index(True) if True in tokens.trained else len(tokens.ids)
                yield tokens.ids[:begin], tokens.ids[begin:]
