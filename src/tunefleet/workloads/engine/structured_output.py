"""Constrains answers to a JSON Schema: computes the allowed tokens at each position."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tunefleet import errors
from tunefleet.errors import InputError, MachineError

# Without optional whitespace: a model could otherwise generate it endlessly.
_COMPACT = {"whitespace_flexible": False}


class Grammars:
    """Compiles grammars for the tokenizer of one model; each schema is compiled once."""

    def __init__(self, tokenizer: Any, width: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._width = width
        self._ends = sorted(ends)
        self._known: Any = None
        self._read: dict[str, Callable[[], Matcher]] = {}

    def read(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema; returns a function that creates a matcher for each answer.

        Raises:
            InputError: If the schema or the tokenizer is not supported.
            MachineError: If the library is not installed.
        """
        try:
            import llguidance
            import llguidance.hf
        except ImportError:
            raise MachineError(
                "Answers with a JSON Schema need the package llguidance.",
                hint=f"Install it: {errors.install_command('train')}",
            ) from None
        if schema in self._read:
            return self._read[schema]
        if self._known is None:
            width = max(self._width, len(self._tokenizer))
            try:
                self._known = llguidance.hf.from_tokenizer(self._tokenizer, width, self._ends or None)
            except ValueError as error:
                raise InputError(f"The tokenizer of this model does not support JSON Schemas: {error}.") from error
        known, grammar = self._known, _grammar(llguidance, schema)

        def make() -> Matcher:
            return Matcher(llguidance.LLMatcher(known, grammar, log_level=0), self._width)

        make()  # raises for unsupported schemas now, not in the middle of a batch
        self._read[schema] = make
        return make


class Matcher:
    """The state of one answer in its grammar."""

    def __init__(self, matcher: Any, width: int) -> None:
        self._matcher = matcher
        self._width = width
        if matcher.is_error():
            raise InputError(f"The JSON Schema is not supported: {matcher.get_error()}")

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether it is allowed next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._width].astype(np.bool_)

    def take(self, token: int) -> bool:
        """Advance by one token; returns whether the answer is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


def _grammar(llguidance: Any, schema: str) -> str:
    try:
        json.loads(schema)
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=_COMPACT)
    except ValueError as error:
        raise InputError(f"The JSON Schema cannot be read: {error}.") from error
    problem: str = llguidance.LLMatcher.validate_grammar(grammar)
    if problem and not problem.startswith("WARNING"):
        raise InputError(f"The JSON Schema is not supported: {problem.splitlines()[0]}")
    return grammar
