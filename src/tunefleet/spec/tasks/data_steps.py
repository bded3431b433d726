"""The steps of a `data` task: what is done to rows, one after the other."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import Block, ModelName, NaturalInt, NotBool, PositiveInt, as_list, many_wrong, wrong

Column = Annotated[str, Field(min_length=1, max_length=1024)]
Columns = Annotated[tuple[Column, ...], BeforeValidator(as_list), Field(min_length=1, max_length=200)]
Plain = str | int | float | bool
Shape = Literal["messages", "prompt_response", "text", "preference"]
SLOT: Final = re.compile(r"\{\{|\}\}|\{(?P<column>[^{}]+)\}|[{}]")
"""What a template is made of: `{column}`, and `{{` and `}}` for the braces themselves."""
_SIZES: Final = ("chars", "words", "tokens", "items")
_EITHER: Final = ("all_of", "any_of", "none_of")


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}") from None
    return value


def _template(value: str) -> str:
    stray = next((found for found in SLOT.finditer(value) if found[0] in {"{", "}"}), None)
    if stray is not None:
        raise wrong(f"has a lone {stray[0]} at character {stray.start() + 1}", "write it twice to mean the character")
    return value


Regex = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_regex)]
Template = Annotated[str, AfterValidator(_template)]
Seed = NaturalInt


class ConditionBlock(Block):
    """A condition on a row. Everything that one block says must hold; nothing of it is run as code."""

    column: Column | None = None
    """The column; `messages.0.content` goes into a list or a mapping, `messages.-1` counts from the end."""
    equals: Plain | None = None
    """Is this."""
    not_equals: Plain | None = None
    """Is not this."""
    one_of: tuple[Plain, ...] | None = Field(default=None, alias="in")
    """Is one of these."""
    not_one_of: tuple[Plain, ...] | None = Field(default=None, alias="not_in")
    """Is none of these."""
    gt: Annotated[float, NotBool] | None = None
    """Is a number above."""
    ge: Annotated[float, NotBool] | None = None
    """Is a number not below."""
    lt: Annotated[float, NotBool] | None = None
    """Is a number below."""
    le: Annotated[float, NotBool] | None = None
    """Is a number not above."""
    min_chars: NaturalInt | None = None
    """Is a text of at least so many characters."""
    max_chars: NaturalInt | None = None
    """Is a text of at most so many characters."""
    min_words: NaturalInt | None = None
    """Is a text of at least so many words, which blanks part."""
    max_words: NaturalInt | None = None
    """Is a text of at most so many words."""
    min_tokens: NaturalInt | None = None
    """Is a text of at least so many tokens of the step's `tokenizer`."""
    max_tokens: NaturalInt | None = None
    """Is a text of at most so many tokens."""
    min_items: NaturalInt | None = None
    """Is a list of at least so many entries."""
    max_items: NaturalInt | None = None
    """Is a list of at most so many entries."""
    matches: Regex | None = None
    """Is a text in which this regular expression is found."""
    not_matches: Regex | None = None
    """Is a text in which it is not found."""
    not_empty: bool | None = None
    """`true`: is there, and is neither null, nor blank, nor an empty list. `false`: the opposite."""
    all_of: Annotated[tuple[ConditionBlock, ...], Field(min_length=1)] | None = Field(default=None, alias="all")
    """All of these conditions hold."""
    any_of: Annotated[tuple[ConditionBlock, ...], Field(min_length=1)] | None = Field(default=None, alias="any")
    """At least one of them holds."""
    none_of: ConditionBlock | None = Field(default=None, alias="not")
    """It does not hold."""

    @property
    def checks(self) -> dict[str, Any]:
        """What is asked of the column: name of the check → its value."""
        named = self.model_fields_set - {"column", "tokenizer", *_EITHER}
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
            faults.append(("column", "is required", f"{next(iter(checks))} is about a column"))
        if self.column is not None and not checks:
            faults.append(("column", "nothing is asked of it", "add not_empty: true, min_chars: 10, matches: …"))
        if not checks and all(getattr(self, name) is None for name in _EITHER):
            faults = faults or [("", "is empty", "add column and what is asked of it")]
        for size in _SIZES:
            least, most = checks.get(f"min_{size}"), checks.get(f"max_{size}")
            if least is not None and most is not None and least > most:
                faults.append((f"min_{size}", f"is above max_{size}", "then no row could fit"))
        if faults:
            raise many_wrong(faults)
        return self


class FilterSpec(ConditionBlock):
    """`filter`: rows for which the condition holds stay."""

    tokenizer: ModelName | None = None
    """A model whose tokenizer counts `min_tokens` and `max_tokens`."""

    @model_validator(mode="after")
    def _can_count(self) -> FilterSpec:
        if self.counts_tokens and self.tokenizer is None:
            raise wrong("is needed to count tokens", "name a model, such as builtin:gsm8k-llama-2m", at="tokenizer")
        if self.tokenizer is not None and not self.counts_tokens:
            raise wrong("has no effect: nothing counts tokens", "add max_tokens, or leave it out", at="tokenizer")
        return self


class ChatFieldsSpec(Block):
    """`map.chat`: what the messages of a chat are called in a dataset of its own kind."""

    role: Column = "role"
    """Field of a message that says who speaks."""
    content: Column = "content"
    """Field of a message that says what."""
    roles: dict[Column, Column] | None = None
    """Who speaks, as the dataset calls them → as chats usually do; others stay."""


class MapSpec(Block):
    """`map`: changes columns, in the order of these keys; for another order write several steps."""

    strip: Literal[True] | Columns | None = None
    """Take blanks off both ends of these columns; `true` of all that hold text."""
    cast: dict[Column, Literal["int", "float", "str", "bool", "json"]] | None = None
    """Column → type. `json` reads a text as JSON."""
    rename: dict[Column, Column] | None = None
    """Old name → new name."""
    chat: dict[Column, ChatFieldsSpec] | None = None
    """Column with a list of messages → what their fields are called; they become `role` and `content`."""
    template: dict[Column, Template] | None = None
    """Column → text with `{column}` for the values of others, such as `"{question}\\n"`."""
    constant: dict[Column, Plain | None] | None = None
    """Column → value, the same in every row."""
    drop: Columns | None = None
    """Columns to leave out."""
    keep: Columns | None = None
    """The only columns to keep."""

    @model_validator(mode="after")
    def _does_something(self) -> MapSpec:
        if not self.model_fields_set:
            raise wrong("changes nothing", "give one of strip, cast, rename, chat, template, constant, drop, keep")
        targets = list((self.rename or {}).values())
        twice = next((name for name in targets if targets.count(name) > 1), None)
        if twice is not None:
            raise wrong(f"gives two columns the name {twice}", at="rename")
        return self


class NearSpec(Block):
    """`dedupe.near`: rows count as the same whose words largely are.

    By MinHash: a few pairs near the threshold are missed, or taken too many.
    """

    threshold: Annotated[float, Field(gt=0, lt=1), NotBool] = 0.8
    """Share of common word groups from which two rows are the same."""
    ngram: PositiveInt = 3
    """Words in a group; texts with fewer words count as one group."""
    permutations: Annotated[int, Field(ge=16, le=1024), NotBool] = 128
    """More are slower and miss less."""


class DedupeSpec(Block):
    """`dedupe`: of rows that are the same the first one stays."""

    columns: Columns | None = None
    """Columns that are compared; by default all."""
    normalise: bool = False
    """Compare texts without regard to case and blanks."""
    near: NearSpec | None = None
    """Leave out rows that are nearly the same, too; needs `datasketch`."""


class MixSpec(Block):
    """`mix`: one stream of rows from several sources, by their weights.

    The source of row `i` depends on the seed and `i` alone; within a source rows keep their order. The steps before it
    are done for each source by itself.
    """

    seed: Seed = 0
    """Another seed mixes otherwise."""
    until: Literal["first_exhausted", "all_exhausted"] = "first_exhausted"
    """`first_exhausted`: end when a source has no row left. `all_exhausted`: begin shorter sources again until every
    row of each has been taken."""


class ShuffleSpec(Block):
    """`shuffle`: another order, the same for the same seed and number of rows."""

    seed: Seed = 0
    """Another seed, another order."""


class SampleSpec(Block):
    """`sample`: some rows, drawn by chance; they keep their order."""

    count: PositiveInt | None = None
    """How many; all if there are fewer."""
    fraction: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Which part."""
    seed: Seed = 0
    """Another seed, other rows."""

    @model_validator(mode="after")
    def _one(self) -> SampleSpec:
        if (self.count is None) == (self.fraction is None):
            raise wrong("needs exactly one of count and fraction")
        return self


def _part(value: float) -> float:
    if value >= 1 and value != int(value):
        raise wrong("is neither a part of one nor a number of rows", "write 0.1, or 200")
    return value


Part = Annotated[float, Field(gt=0), NotBool, AfterValidator(_part)]


class SliceSpec(Block):
    """`slice`: the rows from one number to another, counted from 0."""

    start: NaturalInt = 0
    """The first one."""
    stop: PositiveInt | None = None
    """The first one that is left out; by default all others stay."""

    @model_validator(mode="after")
    def _some(self) -> SliceSpec:
        if self.stop is not None and self.stop <= self.start:
            raise wrong(f"must be above start, which is {self.start}", at="stop")
        return self


class SplitSpec(Block):
    """`split`: parts of the rows, drawn by chance, into files of their own; what is left is `train`. The last step."""

    test: Part | None = None
    """A fraction below 1, or a number, of the distinct rows; equal rows stay together."""
    validation: Part | None = None
    """The same, for a second part."""
    seed: Seed = 0
    """Another seed, other rows."""

    @property
    def parts(self) -> dict[str, float]:
        """Name → fraction or number of distinct rows."""
        return {name: value for name in ("test", "validation") if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _some(self) -> SplitSpec:
        if not self.parts:
            raise wrong("names no part", "add test: 0.1")
        if sum(value for value in self.parts.values() if value < 1) >= 1:
            raise wrong("leaves nothing for train", "smaller fractions")
        return self


class ConvertSpec(Block):
    """`convert`: another shape of rows, whatever the one that they have."""

    to: Shape
    """`messages` (a chat), `prompt_response`, `text`, or `preference` (`prompt`, `chosen`, `rejected`)."""
    origin: Literal["auto", "alpaca", "sharegpt", "messages", "prompt_response", "preference", "text"] = Field(
        default="auto", alias="from"
    )
    """What they are; `auto` looks at the columns of the first row, and the log says what was recognised."""
    system: str | None = None
    """Put this system message in front where a row has none."""
    separator: str = "\n\n"
    """Between prompt and response of a `text`, and between the instruction and the input of Alpaca rows."""
    tokenizer: ModelName | None = None
    """With `to: text`: a model whose chat template writes a chat; ChatML by default."""
    keep: Columns | None = None
    """Other columns to keep beside those of the shape."""

    @model_validator(mode="after")
    def _fitting(self) -> ConvertSpec:
        faults: list[tuple[str, str, str | None]] = []
        if self.tokenizer is not None and self.to != "text":
            faults.append(("tokenizer", f"has no effect with to: {self.to}", "leave it out"))
        if self.origin == "text" and self.to != "text":
            faults.append(("from", f"plain text cannot become {self.to}", "its parts are not known"))
        if self.origin not in {"auto", "preference"} and self.to == "preference":
            faults.append(("from", "has nothing that was rejected", "preferences come of chosen and rejected answers"))
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
    """Another shape of rows; `convert: messages` is short for `convert: {to: messages}`."""
    filter: FilterSpec | None = None
    """Rows for which a condition holds stay."""
    map: MapSpec | None = None
    """Change columns."""
    dedupe: DedupeSpec | None = None
    """Of rows that are the same the first one stays."""
    mix: MixSpec | None = None
    """Mix the sources by their weights."""
    shuffle: ShuffleSpec | None = None
    """Another order."""
    sample: SampleSpec | None = None
    """Some rows, drawn by chance."""
    limit: PositiveInt | None = None
    """The first so many rows."""
    slice: SliceSpec | None = None
    """The rows from one number to another."""
    split: SplitSpec | None = None
    """Parts in files of their own."""

    @property
    def word(self) -> str:
        """Which step it is."""
        return next(iter(self.model_fields_set))

    @property
    def does(self) -> Any:
        """The block of the step."""
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
WHOLE: Final = frozenset({"dedupe", "mix", "shuffle", "sample", "limit", "slice", "split"})
"""Steps that need all rows, and cannot be done for a part of them."""
