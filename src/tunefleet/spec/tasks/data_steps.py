"""The steps of a `data` task, applied to the rows in order."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import Block, ModelName, NaturalInt, NotBool, PositiveInt, as_list, many_wrong, wrong

Column = Annotated[str, Field(min_length=1, max_length=1024)]
Columns = Annotated[tuple[Column, ...], BeforeValidator(as_list), Field(min_length=1, max_length=200)]
Plain = str | int | float | bool
Shape = Literal["messages", "prompt_response", "text", "preference"]
# Elements of a template: `{column}`, and `{{` and `}}` for literal braces.
SLOT: Final = re.compile(r"\{\{|\}\}|\{(?P<column>[^{}]+)\}|[{}]")
# Each has a `min_` and a `max_` check.
_SIZES: Final = ("chars", "words", "tokens", "items")
_COMBINATIONS: Final = ("all_of", "any_of", "none_of")
# Steps that need all rows and therefore cannot run on shards.
WHOLE: Final = frozenset({"dedupe", "mix", "shuffle", "sample", "limit", "slice", "split"})


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}") from None
    return value


def _template(value: str) -> str:
    stray = next((found for found in SLOT.finditer(value) if found[0] in {"{", "}"}), None)
    if stray is not None:
        raise wrong(f"has an unmatched {stray[0]} at character {stray.start() + 1}", "double it for a literal brace")
    return value


Regex = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_regex)]
Template = Annotated[str, AfterValidator(_template)]
Seed = NaturalInt


class ConditionBlock(Block):
    """A condition on a row. All checks of a block must hold; no code is evaluated."""

    column: Column | None = None
    """Column; `messages.0.content` accesses lists and mappings, `messages.-1` counts from the end."""
    equals: Plain | None = None
    """Equals this value."""
    not_equals: Plain | None = None
    """Does not equal this value."""
    one_of: tuple[Plain, ...] | None = Field(default=None, alias="in")
    """Is one of these values."""
    not_one_of: tuple[Plain, ...] | None = Field(default=None, alias="not_in")
    """Is none of these values."""
    gt: Annotated[float, NotBool] | None = None
    """Greater than."""
    ge: Annotated[float, NotBool] | None = None
    """Greater than or equal to."""
    lt: Annotated[float, NotBool] | None = None
    """Less than."""
    le: Annotated[float, NotBool] | None = None
    """Less than or equal to."""
    min_chars: NaturalInt | None = None
    """Minimum number of characters of the text."""
    max_chars: NaturalInt | None = None
    """Maximum number of characters of the text."""
    min_words: NaturalInt | None = None
    """Minimum number of whitespace-separated words of the text."""
    max_words: NaturalInt | None = None
    """Maximum number of words of the text."""
    min_tokens: NaturalInt | None = None
    """Minimum number of tokens of the text, with the step's `tokenizer`."""
    max_tokens: NaturalInt | None = None
    """Maximum number of tokens of the text."""
    min_items: NaturalInt | None = None
    """Minimum number of list entries."""
    max_items: NaturalInt | None = None
    """Maximum number of list entries."""
    matches: Regex | None = None
    """Regular expression that must be found in the text."""
    not_matches: Regex | None = None
    """Regular expression that must not be found in the text."""
    not_empty: bool | None = None
    """`true`: present and neither null, blank nor an empty list. `false`: the opposite."""
    all_of: Annotated[tuple[ConditionBlock, ...], Field(min_length=1)] | None = Field(default=None, alias="all")
    """All of these conditions must hold."""
    any_of: Annotated[tuple[ConditionBlock, ...], Field(min_length=1)] | None = Field(default=None, alias="any")
    """At least one of these conditions must hold."""
    none_of: ConditionBlock | None = Field(default=None, alias="not")
    """This condition must not hold."""

    @property
    def checks(self) -> dict[str, Any]:
        """The checks on the column: name → value."""
        # Set explicitly, because `false` and 0 are meaningful checks.
        named = self.model_fields_set - {"column", "tokenizer", *_COMBINATIONS}
        return {name: value for name in sorted(named) if (value := getattr(self, name)) is not None}

    @property
    def counts_tokens(self) -> bool:
        """Whether a tokenizer is needed."""
        inner = (*(self.all_of or ()), *(self.any_of or ()), *((self.none_of,) if self.none_of else ()))
        return bool({"min_tokens", "max_tokens"} & set(self.checks)) or any(each.counts_tokens for each in inner)

    @model_validator(mode="after")
    def _says_something(self) -> ConditionBlock:
        checks = self.checks
        faults: list[tuple[str, str, str | None]] = []
        if checks and self.column is None:
            faults.append(("column", "is required", f"{next(iter(checks))} applies to a column"))
        if self.column is not None and not checks:
            faults.append(("column", "has no check", "add not_empty: true, min_chars: 10, matches: …"))
        if not checks and all(getattr(self, name) is None for name in _COMBINATIONS):
            faults = faults or [("", "is empty", "add column and a check")]
        for size in _SIZES:
            least, most = checks.get(f"min_{size}"), checks.get(f"max_{size}")
            if least is not None and most is not None and least > most:
                faults.append((f"min_{size}", f"is greater than max_{size}", "no row could match"))
        if faults:
            raise many_wrong(faults)
        return self


class FilterSpec(ConditionBlock):
    """`filter`: keep rows for which the condition holds."""

    tokenizer: ModelName | None = None
    """Model whose tokenizer is used for `min_tokens` and `max_tokens`."""

    @model_validator(mode="after")
    def _can_count(self) -> FilterSpec:
        if self.counts_tokens and self.tokenizer is None:
            raise wrong("is required to count tokens", "set a model, such as builtin:gsm8k-llama-2m", at="tokenizer")
        if self.tokenizer is not None and not self.counts_tokens:
            raise wrong("has no effect: nothing counts tokens", "add max_tokens, or remove it", at="tokenizer")
        return self


class ChatFieldsSpec(Block):
    """`map.chat`: field names of chat messages in a custom format."""

    role: Column = "role"
    """Field with the role."""
    content: Column = "content"
    """Field with the content."""
    roles: dict[Column, Column] | None = None
    """Role in the dataset → standard role; other roles stay unchanged."""


class MapSpec(Block):
    """`map`: change columns, in the order of these keys; for another order use several steps."""

    strip: Literal[True] | Columns | None = None
    """Strip whitespace at both ends of these columns; `true` for all text columns."""
    cast: dict[Column, Literal["int", "float", "str", "bool", "json"]] | None = None
    """Column → type; `json` parses text as JSON."""
    rename: dict[Column, Column] | None = None
    """Old name → new name."""
    chat: dict[Column, ChatFieldsSpec] | None = None
    """Column with a list of messages → names of their fields, which become `role` and `content`."""
    template: dict[Column, Template] | None = None
    """Column → template with `{column}` placeholders, such as `"{question}\\n"`."""
    constant: dict[Column, Plain | None] | None = None
    """Column → constant value."""
    drop: Columns | None = None
    """Columns to remove."""
    keep: Columns | None = None
    """Columns to keep; all others are removed."""

    @model_validator(mode="after")
    def _does_something(self) -> MapSpec:
        if not self.model_fields_set:
            raise wrong("has no effect", "set one of strip, cast, rename, chat, template, constant, drop, keep")
        targets = list((self.rename or {}).values())
        twice = next((name for name in targets if targets.count(name) > 1), None)
        if twice is not None:
            raise wrong(f"creates two columns named {twice}", at="rename")
        return self


class NearSpec(Block):
    """`dedupe.near`: fuzzy deduplication with MinHash.

    The estimate is approximate: a few pairs near the threshold are missed or matched wrongly.
    """

    threshold: Annotated[float, Field(gt=0, lt=1), NotBool] = 0.8
    """Minimum Jaccard similarity of word n-grams for two rows to be duplicates."""
    ngram: PositiveInt = 3
    """Words per n-gram; shorter texts count as one n-gram."""
    permutations: Annotated[int, Field(ge=16, le=1024), NotBool] = 128
    """Number of MinHash permutations. More permutations are slower but more accurate."""


class DedupeSpec(Block):
    """`dedupe`: remove duplicate rows; the first one is kept."""

    columns: Columns | None = None
    """Columns to compare; default: all."""
    normalise: bool = False
    """Ignore case and whitespace in comparisons."""
    near: NearSpec | None = None
    """Also remove near-duplicates; requires `datasketch`."""


class MixSpec(Block):
    """`mix`: interleave rows from several sources by their weights.

    The source of row `i` depends only on the seed and `i`; rows of a source keep their order. Steps before `mix` apply
    to each source separately.
    """

    seed: Seed = 0
    """Random seed of the mix."""
    until: Literal["first_exhausted", "all_exhausted"] = "first_exhausted"
    """`first_exhausted`: stop when a source is exhausted. `all_exhausted`: repeat shorter sources until every row of
    each has been used."""


class ShuffleSpec(Block):
    """`shuffle`: shuffle the rows; deterministic for a given seed and number of rows."""

    seed: Seed = 0
    """Random seed of the shuffle."""


class SampleSpec(Block):
    """`sample`: random sample of the rows; the order is kept."""

    count: PositiveInt | None = None
    """Number of rows; all if there are fewer."""
    fraction: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Fraction of the rows."""
    seed: Seed = 0
    """Random seed of the sample."""

    @model_validator(mode="after")
    def _one(self) -> SampleSpec:
        if (self.count is None) == (self.fraction is None):
            raise wrong("needs exactly one of count and fraction")
        return self


def _part(value: float) -> float:
    # Below 1 it is a fraction, otherwise a number of rows; 1.5 is neither.
    if value >= 1 and value != int(value):
        raise wrong("is neither a fraction nor a number of rows", "write 0.1, or 200")
    return value


Part = Annotated[float, Field(gt=0), NotBool, AfterValidator(_part)]


class SliceSpec(Block):
    """`slice`: rows in an index range, from 0."""

    start: NaturalInt = 0
    """Index of the first row."""
    stop: PositiveInt | None = None
    """Index after the last row; default: all remaining rows."""

    @model_validator(mode="after")
    def _some(self) -> SliceSpec:
        if self.stop is not None and self.stop <= self.start:
            raise wrong(f"must be above start, which is {self.start}", at="stop")
        return self


class SplitSpec(Block):
    """`split`: random splits in separate files; the remaining rows are `train`. Must be the last step."""

    test: Part | None = None
    """Fraction (below 1) or number of the distinct rows; equal rows stay in the same split."""
    validation: Part | None = None
    """Fraction or number for a second split."""
    seed: Seed = 0
    """Random seed of the sample."""

    @property
    def parts(self) -> dict[str, float]:
        """Name → fraction or number of distinct rows."""
        return {name: value for name in ("test", "validation") if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _some(self) -> SplitSpec:
        if not self.parts:
            raise wrong("has no split", "add test: 0.1")
        # Absolute numbers are checked when the number of rows is known.
        if sum(value for value in self.parts.values() if value < 1) >= 1:
            raise wrong("leaves no rows for train", "use smaller fractions")
        return self


class ConvertSpec(Block):
    """`convert`: convert rows to another format."""

    to: Shape
    """Target format: `messages` (a chat), `prompt_response`, `text`, or `preference` (`prompt`, `chosen`,
    `rejected`)."""
    origin: Literal["auto", "alpaca", "sharegpt", "messages", "prompt_response", "preference", "text"] = Field(
        default="auto", alias="from"
    )
    """Source format; `auto` detects it from the columns of the first row and logs it."""
    system: str | None = None
    """System message to prepend if a row has none."""
    separator: str = "\n\n"
    """Text between prompt and response of a `text`, and between instruction and input of Alpaca rows."""
    tokenizer: ModelName | None = None
    """With `to: text`: model whose chat template formats chats; default: ChatML."""
    keep: Columns | None = None
    """Further columns to keep."""

    @model_validator(mode="after")
    def _fitting(self) -> ConvertSpec:
        faults: list[tuple[str, str, str | None]] = []
        if self.tokenizer is not None and self.to != "text":
            faults.append(("tokenizer", f"has no effect with to: {self.to}", "remove it"))
        if self.origin == "text" and self.to != "text":
            faults.append(("from", f"plain text cannot be converted to {self.to}", "its parts are not known"))
        if self.origin not in {"auto", "preference"} and self.to == "preference":
            faults.append(("from", "has no rejected answers", "a preference needs a chosen and a rejected answer"))
        if faults:
            raise many_wrong(faults)
        return self


def _convert(value: Any) -> Any:
    return {"to": value} if isinstance(value, str) else value


def _step(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


class StepBlock(Block):
    """One step: exactly one of these keys."""

    convert: Annotated[ConvertSpec, BeforeValidator(_convert)] | None = None
    """Convert rows to another format; `convert: messages` is short for `convert: {to: messages}`."""
    filter: FilterSpec | None = None
    """Keep rows for which a condition holds."""
    map: MapSpec | None = None
    """Change columns."""
    dedupe: DedupeSpec | None = None
    """Remove duplicate rows."""
    mix: MixSpec | None = None
    """Interleave the sources by their weights."""
    shuffle: ShuffleSpec | None = None
    """Shuffle the rows."""
    sample: SampleSpec | None = None
    """Take a random sample of the rows."""
    limit: PositiveInt | None = None
    """Keep the first N rows."""
    slice: SliceSpec | None = None
    """Keep the rows in an index range."""
    split: SplitSpec | None = None
    """Split the rows into separate files."""

    @property
    def word(self) -> str:
        """Name of the step."""
        return next(iter(self.model_fields_set))

    @property
    def does(self) -> Any:
        """Options of the step."""
        return getattr(self, self.word)

    @model_validator(mode="after")
    def _one(self) -> StepBlock:
        if len(self.model_fields_set) != 1:
            raise wrong("must be exactly one step", f"one of {', '.join(type(self).model_fields)}")
        return self


Step = Annotated[
    StepBlock,
    BeforeValidator(_step),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]
