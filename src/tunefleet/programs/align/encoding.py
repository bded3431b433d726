"""Tokens of prompts and answers. They are tokenised apart, so that a prompt is met as it will be when it is used."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from tunefleet.errors import ModelError
from tunefleet.programs.align.rows import Content
from tunefleet.programs.data.shapes import Pair
from tunefleet.programs.data.tokens import Encoder

Exchange = tuple[Content, Content]
"""A prompt and an answer to it."""
_AT_ONCE = 500


@dataclass(slots=True)
class Counts:
    """What became of the rows.

    Args:
        rows: That are left.
        dropped: That nothing could be learnt from.
        truncated: That were cut.
        tokens: Of all that are left.
    """

    rows: int = 0
    dropped: int = 0
    truncated: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Limits:
    """How long a sequence may be.

    Args:
        whole: Tokens of prompt and answer; the end is cut.
        prompt: Tokens of a prompt; its beginning is cut.
    """

    whole: int
    prompt: int | None = None
    counts: Counts = field(default_factory=Counts)

    def cut(self, prompt: list[int], answers: list[list[int]]) -> tuple[list[int], list[list[int]]] | None:
        """Cut a prompt and its answers; None if of one of them nothing is left."""
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
    """Tokenises exchanges, texts or chats.

    Args:
        tokenizer: The model's.
        separator: Between prompt and answer, if they are texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, separator: str) -> None:
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._separator = separator

    def encode(self, exchanges: Iterable[Exchange]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tokens of prompt and answer of each exchange.

        Raises:
            ModelError: If chats cannot be rendered, or not so that the answer stands behind the prompt.
            DataError: If the chat template refuses one.
        """
        source = iter(exchanges)
        while batch := list(itertools.islice(source, _AT_ONCE)):
            if any(isinstance(prompt, list) for prompt, _ in batch):
                yield from (self._chat(exchange) for exchange in batch)
                continue
            texts = [Pair(f"{prompt}{self._separator}", str(answer)) for prompt, answer in batch]
            for tokens in self._encoder.encode(list(texts)):
                begin = tokens.trained.index(True) if True in tokens.trained else len(tokens.ids)
                yield tokens.ids[:begin], tokens.ids[begin:]

    def prompt(self, prompt: Content) -> str | None:
        """Return a text prompt with what stands behind it; None if it is a chat, which is rendered."""
        return f"{prompt}{self._separator}" if isinstance(prompt, str) else None

    def length(self, prompt: Content) -> int:
        """Return how many tokens a prompt has."""
        text = self.prompt(prompt)
        if text is not None:
            return len(self._tokenizer(text, verbose=False)["input_ids"])
        assert isinstance(prompt, list)
        return len(self._bare(self._encoder.renderer.render(prompt, ask=True)))

    def _chat(self, exchange: Exchange) -> tuple[list[int], list[int]]:
        prompt, answer = exchange
        if not isinstance(prompt, list) or not isinstance(answer, list):
            (tokens,) = self.encode([exchange])
            return tokens
        asked = self._encoder.renderer.render(prompt, ask=True)
        whole = self._encoder.renderer.render([*prompt, *answer])
        if not whole.startswith(asked):
            raise ModelError(
                f"The chat template of {self._tokenizer.name_or_path} renders a prompt otherwise once it is answered, "
                "so the answer cannot be told from the prompt.",
                hint="Use a template that does not rewrite earlier turns, or columns of texts.",
            )
        return self._bare(asked), self._bare(whole[len(asked) :])

    def _bare(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids
