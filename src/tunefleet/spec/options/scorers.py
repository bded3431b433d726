"""How the answers of a suite are scored."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, FreeMapping, NaturalFloat, Text, many_wrong, wrong
from tunefleet.spec.options.rewards import Pattern
from tunefleet.spec.options.rows import Faults

ScorerType = Literal["exact_match", "contains", "regex", "numeric", "f1", "json_schema"]
# Key of a scorer → the types that use it.
_KEYS: Final[dict[str, tuple[ScorerType, ...]]] = {
    "pattern": ("regex",),
    "tolerance": ("numeric",),
    "json_schema": ("json_schema",),
    "ignore_case": ("exact_match", "contains", "regex"),
}
# Fields of the rows in the items file, which has the scores next to them.
_TAKEN: Final = ("index", "answer", "finish_reason", "tokens")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise wrong("must be a letter, followed by letters, digits and _", "it is the name of a metric")
    if value in _TAKEN:
        raise wrong("is a field of the items file", "choose another name")
    return value


class ScorerSpec(Block):
    """`evaluations[].scorers[]`: one score of each answer; its mean over the rows is a metric."""

    type: ScorerType
    """`exact_match`: equals the row's answer; `contains`: contains it; `regex`: matches `pattern`; `numeric`: the final
    number (after `####`, else the last one) equals that of the row's answer; `f1`: overlap of the words with the row's
    answer, as in SQuAD; `json_schema`: is JSON that is valid according to `json_schema`."""
    name: Annotated[Text, AfterValidator(_name)] | None = None
    """Name of the metric; default: the type. Required for a second scorer of the same type."""
    pattern: Pattern | None = None
    """With `regex`: the regular expression, searched anywhere in the answer; `.` also matches line breaks. Default: the
    row's answer is the pattern."""
    tolerance: NaturalFloat = 0.0
    """With `numeric`: maximum absolute difference."""
    json_schema: FreeMapping | None = None
    """With `json_schema`: the JSON Schema; `$ref` only within the schema."""
    ignore_case: bool = True
    """With `exact_match`, `contains` and `regex`: ignore case."""

    @model_validator(mode="after")
    def _fitting(self) -> ScorerSpec:
        faults: Faults = [
            (key, f"is only for type: {' and '.join(types)}", "remove it")
            for key, types in _KEYS.items()
            if self.type not in types and key in self.model_fields_set and getattr(self, key) is not None
        ]
        if self.type == "json_schema" and self.json_schema is None:
            faults.append(("json_schema", "is required with type: json_schema", None))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def label(self) -> str:
        """Its name, or its type if it has none."""
        return self.name or self.type


Scorers = Annotated[tuple[ScorerSpec, ...], Field(min_length=1, max_length=20)]
