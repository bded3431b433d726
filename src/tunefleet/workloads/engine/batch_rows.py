"""One answer that is being drawn."""

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


@dataclass(slots=True)
class Row:
    """One answer that is being drawn: `Sampling.n` of them belong to a request."""

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
    writing: Writing = field(init=False)

    def __post_init__(self) -> None:
        given = self.sampling.seed
        self.seed = secrets.randbits(63) if given is None else given + self.index

    @property
    def sampling(self) -> Sampling:
        """How it is drawn."""
        return self.request.sampling

    @property
    def may_end(self) -> bool:
        """Whether it is long enough to end."""
        return len(self.tokens) >= self.sampling.min_tokens

    def begin(self) -> None:
        """Begin, or begin anew: what is drawn will be the same."""
        self.tokens, self.logprobs, self.finish, self.broken = [], [], None, False
        self.counts = Counter()
        self.rng = random.Random(self.seed)
        self.matcher = None if self.grammar is None else self.grammar()
        sampling = self.sampling
        self.writing = Writing(self.tokenizer, skip_special=sampling.skip_special_tokens, stops=sampling.stop)

    def take(self, token: int) -> None:
        """Take the token that was drawn, and see whether the answer ends with it."""
        may_end = self.may_end
        self.tokens.append(token)
        whole = self.matcher.take(token) if self.matcher is not None else False
        if token in self.ends:
            self._end("stop")
            return
        self.counts[token] += 1
        self.writing.add(token, heed_stops=may_end)
        if self.writing.stopped or whole:
            self._end("stop")
        elif len(self.tokens) >= self.limit:
            self._end("length")

    def abort(self) -> None:
        """End it where what was asked for leaves no token that can follow."""
        self._end("abort")

    def give_up(self) -> None:
        """End it where the model says nothing that could be drawn from."""
        self.broken = True
        self._end("abort")

    def spoils(self, token: int) -> bool:
        """Tell whether a token would complete one of the words that must not be drawn."""
        words = self.sampling.bad_words
        if not words or token in self.ends:
            return False
        before = max(map(len, words)) - 1
        after = self.writing.text[-before:] if before else ""
        after += self.writing.added(token)
        return any(word in after for word in words)

    def choice(self) -> Choice:
        """Return it, once it has ended.

        Raises:
            RequestError: If the model has broken down over it.
        """
        if self.broken:
            raise RequestError(
                f"Prompt {self.request.key} cannot be answered: the model's logits are no finite numbers.",
                key=self.request.key,
                hint="Try dtype: float32; half precision may be too little for this model.",
            )
        logprobs = self.logprobs if self.sampling.logprobs is not None else None
        return Choice(self.writing.text, self.finish or "abort", len(self.tokens), logprobs)

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        self.matcher = None
        self.writing.finish()


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
