"""Rows of preferences or prompts, and their tokens; every error names the row and the column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.parts import Parts
from tunefleet.analysis.dataset.shapes import Recognized, named_judged, named_pair
from tunefleet.errors import DataError
from tunefleet.workloads.data.formats import Content, Pair, Place, Shape, prompt_of, without_weights
from tunefleet.workloads.data.readers import Rows, numbered
from tunefleet.workloads.data.tokenization import Encoder

RowKind = Literal["pairs", "judged", "prompts"]
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A prompt with a chosen and a rejected answer; all texts (the prompt ends with the separator), or all chats."""

    prompt: Content
    chosen: Content
    rejected: Content
    tools: list[Any] | None = None
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer to a prompt, and whether it is desirable."""

    prompt: Content
    completion: Content
    good: bool
    tools: list[Any] | None = None
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt, and its reference answer if there is one."""

    prompt: Content
    reference: str | None
    place: Place = field(default=Place(), compare=False)


def pairs(rows: Rows, shape: Shape) -> Iterator[PreferencePair]:
    """Read rows as pairs.

    Raises:
        DataError: If a row lacks a column or has a value of another type.
    """
    for parts, place in shape.parts(numbered(rows)):
        prompt, answers, tools = _contents(parts, shape.separator, place)
        yield PreferencePair(prompt, answers[0], answers[1], tools, place)


def labelled_answers(rows: Rows, shape: Shape) -> Iterator[LabelledAnswer]:
    """Read rows as labelled answers; a pair counts as two.

    Raises:
        DataError: If a row lacks a column or has a value of another type.
    """
    for parts, place in shape.parts(numbered(rows)):
        prompt, answers, tools = _contents(parts, shape.separator, place)
        if parts.good is None:
            yield LabelledAnswer(prompt, answers[0], good=True, tools=tools, place=place)
            yield LabelledAnswer(prompt, answers[1], good=False, tools=tools, place=place)
        else:
            yield LabelledAnswer(prompt, answers[0], parts.good, tools, place)


def prompts(rows: Rows, shape: Shape) -> Iterator[PromptRow]:
    """Read rows as prompts.

    Raises:
        DataError: If a row lacks a column or has a value of another type, or chats and texts are mixed.
    """
    chats: bool | None = None
    for parts, place in shape.parts(numbered(rows)):
        if chats is not None and parts.chat is not chats:
            holds, before = ("a chat", "texts") if parts.chat else ("a text", "chats")
            raise DataError(
                f"{place} holds {holds} in {shape.columns[0]!r}, but the rows before it have {before}.",
                hint="Use the same format in all rows.",
            )
        chats = parts.chat
        if parts.tools:
            shape.notes.add("Column 'tools' is not used: these prompts are rendered without tools", place.row)
        reference = parts.answer[0]["content"] if parts.answer else None
        yield PromptRow(prompt_of(parts, shape.separator), reference, place)


def recognized(kind: RowKind, columns: tuple[Any, ...], first: Mapping[str, Any], origin: str) -> Recognized:
    """Return the shape of the rows of a kind."""
    if kind == "pairs":
        return named_pair(columns, first, origin)
    if kind == "judged":
        return named_judged(columns, first, origin)
    prompt, reference = columns
    return Recognized("prompt", {"prompt": prompt, **({"reference": reference} if reference else {})})


def _contents(parts: Parts, separator: str, place: Place) -> tuple[Content, list[Content], list[Any] | None]:
    """Return prompt and answers as texts or as chats."""
    answers = [parts.answer, *([parts.worse] if parts.worse is not None else [])]
    for message in (message for answer in answers for message in answer):
        if message["role"] == "user":
            raise DataError(
                f"{place}: an answer contains a user message, which would be trained as part of the answer.",
                hint="End each chat with the assistant's answer.",
            )
        if message.get("weight") == 0:
            raise DataError(f"{place}: an answer has weight 0, but answers must be trained to be compared.")
    prompt = prompt_of(parts, separator)
    if parts.chat:
        return prompt, [without_weights(answer)[0] for answer in answers], parts.tools
    texts: list[Content] = [str(answer[0]["content"]) for answer in answers]
    if not all(texts):
        raise DataError(f"{place} has an empty answer.")
    if not any(message["content"] for message in parts.before):
        raise DataError(f"{place} has an empty prompt.")
    return prompt, texts, None


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
