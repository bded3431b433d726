"""Answers in generation, and their detokenization."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tunefleet.workloads.engine.protocol import Choice, Finish, Request, Sampling, TokenLogprob
from tunefleet.workloads.faults import RequestError

if TYPE_CHECKING:
    from tunefleet.workloads.engine.structured_output import Matcher

# The replacement character, to which the bytes of an incomplete character are decoded.
_INCOMPLETE = "\ufffd"


@dataclass(slots=True)
class Row:
    """One answer in generation; a request has `Sampling.n` of them."""

    request: Request
    index: int
    prompt: list[int]
    limit: int
    ends: frozenset[int]
    tokenizer: Any
    grammar: Callable[[], Matcher] | None = None
    matcher: Matcher | None = None
    seed: int = 0
    tokens: list[int] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    finish: Finish | None = None
    broken: bool = False
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)
    detokenizer: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        given = self.sampling.seed
        # Fixed even without a seed in the request: a batch that is repeated must give the same answer.
        self.seed = secrets.randbits(63) if given is None else given + self.index

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters."""
        return self.request.sampling

    @property
    def may_end(self) -> bool:
        """Whether the answer has its minimum length."""
        return len(self.tokens) >= self.sampling.min_tokens

    def begin(self) -> None:
        """Start or restart generation; a restart samples the same tokens."""
        self.tokens, self.logprobs, self.finish, self.broken = [], [], None, False
        self.counts = Counter()
        self.rng = random.Random(self.seed)
        self.matcher = None if self.grammar is None else self.grammar()
        sampling = self.sampling
        self.detokenizer = Detokenizer(self.tokenizer, skip_special=sampling.skip_special_tokens, stops=sampling.stop)

    def take(self, token: int) -> None:
        """Append a sampled token, and end the answer if it is complete."""
        may_end = self.may_end
        self.tokens.append(token)
        complete = self.matcher.take(token) if self.matcher is not None else False
        if token in self.ends:
            self._end("stop")
            return
        self.counts[token] += 1
        self.detokenizer.add(token, check_stops=may_end)
        if self.detokenizer.stopped or complete:
            self._end("stop")
        elif len(self.tokens) >= self.limit:
            self._end("length")

    def abort(self) -> None:
        """End the answer because the request's constraints allow no further token."""
        self._end("abort")

    def give_up(self) -> None:
        """End the answer because the model returned invalid logits."""
        self.broken = True
        self._end("abort")

    def completes_bad_word(self, token: int) -> bool:
        """Return whether a token would complete one of the `bad_words`."""
        words = self.sampling.bad_words
        if not words or token in self.ends:
            return False
        before = max(map(len, words)) - 1
        after = self.detokenizer.text[-before:] if before else ""
        after += self.detokenizer.added(token)
        return any(word in after for word in words)

    def choice(self) -> Choice:
        """Return the finished answer.

        Raises:
            RequestError: If the model returned invalid logits.
        """
        if self.broken:
            raise RequestError(
                f"Prompt {self.request.key} cannot be answered: the model's logits are NaN or infinite.",
                key=self.request.key,
                hint="Try dtype: float32; half precision may not be sufficient for this model.",
            )
        logprobs = self.logprobs if self.sampling.logprobs is not None else None
        return Choice(self.detokenizer.text, self.finish or "abort", len(self.tokens), logprobs)

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        self.matcher = None
        self.detokenizer.finish()


class Detokenizer:
    """Incremental detokenization of one answer.

    A token may hold only part of a character; its text is held back until the rest arrives.
    """

    def __init__(self, tokenizer: Any, *, skip_special: bool, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stops = tuple(stops)
        # Characters that are held back in a stream: they may be the start of a stop string.
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._tokens: list[int] = []
        # Only tokens from here on are decoded again: decoding all of them for each token would be quadratic.
        self._from = 0
        self._read = 0
        self._sent = 0
        self.text = ""
        self.stopped = False

    def added(self, token: int) -> str:
        """Return the text that one more token would add, including text held back so far."""
        before = self._decode(self._tokens[self._from : self._read])
        return self._decode([*self._tokens[self._from :], token])[len(before) :]

    def add(self, token: int, *, check_stops: bool = True) -> None:
        """Append a token."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._from : self._read])
        after = self._decode(self._tokens[self._from :])
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return
        self._append(after[len(before) :], check_stops=check_stops)
        self._from, self._read = self._read, len(self._tokens)

    def finish(self) -> None:
        """Append the text that is still held back."""
        before = self._decode(self._tokens[self._from : self._read])
        self._append(self._decode(self._tokens[self._from :])[len(before) :], check_stops=False)
        self._from = self._read = len(self._tokens)

    def piece(self, *, last: bool) -> str:
        """Return the text that has not been streamed yet."""
        end = len(self.text) if last or self.stopped else max(self._sent, len(self.text) - self._held)
        piece = self.text[self._sent : end]
        self._sent = end
        return piece

    def _append(self, text: str, *, check_stops: bool) -> None:
        if self.stopped:
            return
        start = max(0, len(self.text) - self._held)
        self.text += text
        if not check_stops:
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
