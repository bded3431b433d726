"""The scorers of a suite: an answer and the row's reference answer → a score between 0 and 1."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import jsonschema_rs
import orjson

from tunefleet.errors import InputError
from tunefleet.spec.options.answer_match import MatchSpec
from tunefleet.spec.options.scorers import ScorerSpec
from tunefleet.workloads.common.answer_extraction import final_number, plain

Scorer = Callable[[str, str], bool | float]
_ARTICLES: Final = frozenset({"a", "an", "the"})
# Chinese and Japanese have no spaces between words: each character is a token, as in MLQA.
_TOKEN: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
# Models often put JSON into a Markdown code block, although nothing else is in the answer.
_CODE_BLOCK: Final = re.compile(r"```(?:json)?[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL | re.IGNORECASE)


def build(spec: ScorerSpec, place: str) -> Scorer:
    """Return the scorer of a spec.

    Args:
        place: Its place in the workflow file, for messages.

    Raises:
        InputError: If its schema is not a JSON Schema.
    """
    if spec.type == "json_schema":
        return _json_scorer(spec.json_schema or {}, f"{place}.json_schema")
    if spec.type == "numeric":
        return lambda answer, wanted: _close(final_number(answer), final_number(wanted), spec.tolerance)
    if spec.type == "f1":
        return f1
    if spec.type == "regex":
        flags = _flags(spec)
        return lambda answer, wanted: re.search(spec.pattern or wanted, answer, flags) is not None
    how = MatchSpec(extract="text", ignore_case=spec.ignore_case)
    if spec.type == "contains":
        return lambda answer, wanted: plain(wanted, how) in plain(answer, how)
    return lambda answer, wanted: plain(answer, how) == plain(wanted, how)


def reference_fault(spec: ScorerSpec, wanted: str) -> str | None:
    """Return why answers cannot be scored against a row's reference answer; None if they can."""
    if spec.type == "numeric":
        return None if final_number(wanted) is not None else "contains no number"
    if spec.type == "json_schema" or spec.pattern is not None:
        return None
    # Every answer contains an empty text, and every answer matches an empty pattern.
    if not wanted.strip():
        return "is empty"
    if spec.type == "regex":
        try:
            re.compile(wanted, _flags(spec))
        except re.error as error:
            return f"is not a regular expression ({error})"
    return None


def f1(answer: str, wanted: str) -> float:
    """Return the F1 score of an answer's tokens, as in SQuAD: without case, punctuation and English articles."""
    ours, theirs = _tokens(answer), _tokens(wanted)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def _tokens(text: str) -> list[str]:
    without = "".join(each for each in text.casefold() if not _is_punctuation(each))
    found = _TOKEN.findall(without)
    # An answer such as "A" is not an article.
    return [each for each in found if each not in _ARTICLES] or found


def _is_punctuation(character: str) -> bool:
    # SQuAD removes all of `string.punctuation`, of which Unicode counts some as symbols.
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _flags(spec: ScorerSpec) -> re.RegexFlag:
    return re.DOTALL | re.IGNORECASE if spec.ignore_case else re.DOTALL


def _close(found: str | None, wanted: str | None, tolerance: float) -> bool:
    if found is None or wanted is None:
        return False
    # Decimal, not float: 0.3 is within 0.1 of 0.2. `repr` gives the digits that were written.
    return found == wanted or abs(Decimal(found) - Decimal(wanted)) <= Decimal(repr(tolerance))


def _json_scorer(schema: dict[str, Any], place: str) -> Scorer:
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, retriever=_refuse)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{place} is not a JSON Schema: {reason}", hint="Fix the schema.") from error

    def score(answer: str, _: str) -> bool:
        block = _CODE_BLOCK.fullmatch(answer.strip())
        try:
            # Stricter than `json`, which accepts NaN.
            return validator.is_valid(orjson.loads(answer if block is None else block[1]))
        except orjson.JSONDecodeError:
            return False

    return score


def _refuse(uri: str) -> Any:
    # A worker does not fetch addresses that a workflow file names in a schema.
    raise ValueError(f"{uri} is outside the schema; put it under $defs")
