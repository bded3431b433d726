"""Holds answers to a JSON Schema: says for each place which tokens can go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tunefleet import errors
from tunefleet.errors import InputError, MachineError

_COMPACT = {"whitespace_flexible": False}


class Grammars:
    """Makes the grammars of one model; each schema is read once."""

    def __init__(self, tokenizer: Any, width: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._width = width
        self._ends = sorted(ends)
        self._known: Any = None
        self._read: dict[str, Callable[[], Matcher]] = {}

    def read(self, schema: str) -> Callable[[], Matcher]:
        """Read a schema; returns what makes a matcher for each answer.

        Raises:
            InputError: If the schema cannot be obeyed, or the tokenizer is of a kind that it cannot be checked with.
            MachineError: If the library is not installed.
        """
        try:
            import llguidance
            import llguidance.hf
        except ImportError:
            raise MachineError(
                "Answers by a JSON Schema need the package llguidance.", hint=f"Install it: {errors.install('train')}"
            ) from None
        if schema in self._read:
            return self._read[schema]
        if self._known is None:
            width = max(self._width, len(self._tokenizer))
            try:
                self._known = llguidance.hf.from_tokenizer(self._tokenizer, width, self._ends or None)
            except ValueError as error:
                raise InputError(f"This model's tokenizer cannot be held to a JSON Schema: {error}.") from error
        known, grammar = self._known, _grammar(llguidance, schema)

        def make() -> Matcher:
            return Matcher(llguidance.LLMatcher(known, grammar, log_level=0), self._width)

        make()  # says what cannot be obeyed now, not in the middle
        self._read[schema] = make
        return make


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, width: int) -> None:
        self._matcher = matcher
        self._width = width
        if matcher.is_error():
            raise InputError(f"The JSON Schema cannot be obeyed: {matcher.get_error()}")

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether it can be next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._width].astype(np.bool_)

    def take(self, token: int) -> bool:
        """Go on by one token; returns whether the answer is whole and nothing can follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


def _grammar(llguidance: Any, schema: str) -> str:
    try:
        json.loads(schema)
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=_COMPACT)
    except ValueError as error:
        raise InputError(f"The JSON Schema cannot be read: {error}.") from error
    fault: str = llguidance.LLMatcher.validate_grammar(grammar)
    if fault and not fault.startswith("WARNING"):
        raise InputError(f"The JSON Schema cannot be obeyed: {fault.splitlines()[0]}")
    return grammar
