"""When an answer is correct: which part of it is compared with the dataset's answer."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, PositiveInt, wrong

Extract = Literal["gsm8k", "number", "text", "regex"]


def _pattern(value: str) -> str:
    try:
        compiled = re.compile(value)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}") from None
    # With several groups it would be ambiguous which one is compared.
    if compiled.groups > 1:
        raise wrong(f"has {compiled.groups} groups; at most one is allowed", "write the others as (?:…)")
    return value


class MatchSpec(Block):
    """`evaluations[].match`: which part of an answer is compared with that of the row's answer."""

    extract: Extract = "gsm8k"
    """What is compared: `gsm8k`: the number after `####`, else the last number; `number`: the last number; `text`: the
    full text; `regex`: the last match of `pattern`. Numbers are compared without commas, currency signs and trailing
    zeros."""
    pattern: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_pattern)] | None = None
    """With `regex`: the pattern; its group is compared, or the full match if it has none."""
    ignore_case: bool = True
    """Compare texts case-insensitively."""
    ignore_space: bool = True
    """Collapse whitespace in texts to single spaces and strip the ends."""
    ignore_punctuation: bool = False
    """Ignore punctuation in texts."""

    @model_validator(mode="after")
    def _fitting(self) -> MatchSpec:
        if self.extract == "regex" and self.pattern is None:
            raise wrong("is required with extract: regex", at="pattern")
        if self.extract != "regex" and self.pattern is not None:
            raise wrong(f"has no effect with extract: {self.extract}", "set extract: regex", at="pattern")
        return self


class ExactMatchSpec(MatchSpec):
    """`spec.evaluate.exact_match`: share of eval rows with a correct answer, before and after training."""

    rows: PositiveInt = 100
    """Number of eval rows to answer."""
    # Unlike in an evaluation the default is not `gsm8k`: eval rows of a fine-tune may contain any text.
    extract: Extract = "text"
    """What is compared: `text`: the full answer; `number`: the last number; `gsm8k`: the number after `####`, else the
    last number; `regex`: the last match of `pattern`. Numbers are compared without commas, currency signs and trailing
    zeros."""
