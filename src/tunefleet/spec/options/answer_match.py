"""When an answer is right: what of it is compared with the same of the dataset's answer."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, PositiveInt, wrong

Extract = Literal["gsm8k", "number", "text", "regex"]


def _pattern(value: str) -> str:
    try:
        found = re.compile(value)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}") from None
    if found.groups > 1:
        raise wrong(f"has {found.groups} groups", "one group, or none; the others as (?:…)")
    return value


class MatchSpec(Block):
    """`evaluations[].match`: what of an answer is compared with the same of the row's answer."""

    extract: Extract = "gsm8k"
    """`gsm8k`: the number behind `####`, else the last number; `number`: the last number; `text`: all of it; `regex`:
    what `pattern` finds last. Numbers are equal whatever their commas, currency signs and trailing zeros."""
    pattern: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_pattern)] | None = None
    """With `regex`: its group, or all of it if there is none."""
    ignore_case: bool = True
    """Of texts: upper and lower case are equal."""
    ignore_space: bool = True
    """Of texts: any white space is one space, none at the ends."""
    ignore_punctuation: bool = False
    """Of texts: punctuation counts for nothing."""

    @model_validator(mode="after")
    def _fitting(self) -> MatchSpec:
        if self.extract == "regex" and self.pattern is None:
            raise wrong("is required with extract: regex", at="pattern")
        if self.extract != "regex" and self.pattern is not None:
            raise wrong(f"has no effect with extract: {self.extract}", "write extract: regex", at="pattern")
        return self


class ExactMatchSpec(MatchSpec):
    """`spec.evaluate.exact_match`: the share of held-out rows that are answered right, before and after."""

    rows: PositiveInt = 100
    """How many held-out rows are answered."""
    extract: Extract = "text"
    """`text`: all of the answer; `number`: the last number; `gsm8k`: the number behind `####`, else the last number;
    `regex`: what `pattern` finds last. Numbers are equal whatever their commas, currency signs and trailing zeros."""
