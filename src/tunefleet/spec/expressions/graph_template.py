"""`data.type: graph_template`: a prompt that is put together from the results of other tasks."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, Text, as_list, many_wrong, only, wrong
from tunefleet.spec.value_preview import show

_BUILT_IN: Final = "two_column_briefing"
_FORMAT: Final = "format"


class ColumnList(Block):
    """`columns[].data`: values written here."""

    type: Annotated[Literal["list"], only("list", "only `type: list` is known here", "write the values as items")] = (
        "list"
    )
    """Always `list`."""
    items: tuple[str | int | float | bool, ...]
    """The values."""


class ColumnSpec(Block):
    """`template.columns[]`: a value and what it is called: `node` and `path`, or `expr`, or `data`."""

    label: Text | None = None
    """What it is called in the prompt; by default `Column 1` and so on."""
    node: Text | None = None
    """Stage or node whose result it comes from; the task depends on it."""
    path: Text | None = None
    """Path in that result, such as `result.items[0].output`; `result.` may be left out."""
    expr: Text | None = None
    """Node and path in one: `branch-a.result.items[0].output`."""
    data: ColumnList | None = None
    """Values written here."""
    default: Any = None
    """Taken where the result has no such value, or null; without it that is an error."""

    @model_validator(mode="after")
    def _one_value(self) -> ColumnSpec:
        if (self.node is None) != (self.path is None):
            raise wrong("needs both node and path")
        if sum(given is not None for given in (self.node, self.expr, self.data)) != 1:
            raise wrong("needs exactly one of node with path, expr and data")
        return self


class FormatArgument(Block):
    """`steps[].arguments[]`: which column stands for a slot."""

    label: Text
    """The slot's name."""
    value: Text
    """Label of a column, or of a step before."""


class FormatStep(Block):
    """`options.format.steps[]`: a text that is made out of columns, and may be used like one."""

    label: Text
    """Its name."""
    template: str
    """Text with slots such as `{question}`."""
    arguments: tuple[FormatArgument, ...] = ()
    """What the slots stand for; without it a slot is the name of a column."""


class FormatMessage(Block):
    """`options.format.messages[]`: a part of the prompt; parts are divided by an empty line."""

    role: Literal["system", "user"] | None = None
    """For people: a prompt is one text here."""
    content: Annotated[str, Field(min_length=1)]
    """Label of a column or step, or text with slots such as `{question}`."""


class FormatSpec(Block):
    """`options.format`: for `name: format`. A column that is a list makes one prompt of each entry."""

    steps: tuple[FormatStep, ...] = ()
    """Texts that are made first, in this order."""
    messages: Annotated[tuple[FormatMessage, ...], Field(min_length=1)]
    """The parts of the prompt."""


Lines = Annotated[tuple[str, ...], BeforeValidator(as_list)]


class TemplateOptions(Block):
    """`template.options`."""

    role: Text = "energy strategist"
    """Whom the model plays."""
    intro: Lines = ()
    """First lines."""
    closing: Lines = ()
    """Last lines."""
    format: FormatSpec | None = None
    """For `name: format`."""


class TemplateSpec(Block):
    """`data.template`: how the prompt is made."""

    name: Text = _BUILT_IN
    """`two_column_briefing`, `format`, or any name with `text`."""
    text: Annotated[str, Field(min_length=1)] | None = None
    """The prompt, with `{col0_label}`, `{col0_value}`, … and the options `{role}`, `{intro}`, `{closing}`; other braces
    stay."""
    columns: Annotated[tuple[ColumnSpec, ...], Field(min_length=1)]
    """The values."""
    options: TemplateOptions = Field(default_factory=TemplateOptions)
    """Words around the values."""
    append_system_prompt: bool = False
    """Whether `inference.system_prompt` stands before the prompt."""

    @model_validator(mode="after")
    def _known(self) -> TemplateSpec:
        built_in = self.name in {_BUILT_IN, _FORMAT}
        named = "name" in self.model_fields_set
        checks = (
            (
                self.text is not None and built_in and named,
                "text",
                f"is not used by {self.name}",
                "give it another name",
            ),
            (self.text is None and not built_in, "name", f"{show(self.name)} is not built in", "add template.text"),
            (
                self.text is None and self.name == _BUILT_IN and len(self.columns) < 2,
                "columns",
                f"{_BUILT_IN} takes at least two",
                "add one, or write the prompt as template.text",
            ),
            (
                (self.options.format is None) == (self.name == _FORMAT),
                "options",
                "`format` and `name: format` belong together",
                "write both or neither",
            ),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            raise many_wrong(faults)
        return self


class GraphTemplateData(Block):
    """`spec.data` with `type: graph_template`: a prompt out of the results of other tasks."""

    type: Literal["graph_template"]
    """`graph_template`"""
    template: TemplateSpec
    """How the prompt is made."""
