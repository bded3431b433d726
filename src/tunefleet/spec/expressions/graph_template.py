"""`data.type: graph_template`: a prompt built from the results of other tasks."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, Text, as_list, many_wrong, only, wrong
from tunefleet.validation_errors import show

_BUILT_IN: Final = "two_column_briefing"
_FORMAT: Final = "format"


class ColumnList(Block):
    """`columns[].data`: inline values."""

    type: Annotated[
        Literal["list"], only("list", "only `type: list` is supported here", "write the values as items")
    ] = "list"
    """Always `list`."""
    items: tuple[str | int | float | bool, ...]
    """The values."""


class ColumnSpec(Block):
    """`template.columns[]`: a labeled value from `node` and `path`, `expr`, or `data`."""

    label: Text | None = None
    """Label in the prompt; default: `Column 1` and so on."""
    node: Text | None = None
    """Stage or node that produces the result; becomes a dependency of the task."""
    path: Text | None = None
    """Path in that result, such as `result.items[0].output`; `result.` is optional."""
    expr: Text | None = None
    """Node and path in one string: `branch-a.result.items[0].output`."""
    data: ColumnList | None = None
    """Inline values."""
    default: Any = None
    """Value to use if the result has no such value or it is null; without it that is an error."""

    @model_validator(mode="after")
    def _one_value(self) -> ColumnSpec:
        if (self.node is None) != (self.path is None):
            raise wrong("needs both node and path")
        # A column has exactly one source.
        if sum(given is not None for given in (self.node, self.expr, self.data)) != 1:
            raise wrong("needs exactly one of node with path, expr and data")
        return self


class FormatArgument(Block):
    """`steps[].arguments[]`: the column that fills a placeholder."""

    label: Text
    """Name of the placeholder."""
    value: Text
    """Label of a column or of an earlier step."""


class FormatStep(Block):
    """`options.format.steps[]`: a text built from columns, usable like a column."""

    label: Text
    """Name of the step."""
    template: str
    """Text with placeholders such as `{question}`."""
    arguments: tuple[FormatArgument, ...] = ()
    """Columns for the placeholders; default: the column with the placeholder's name."""


class FormatMessage(Block):
    """`options.format.messages[]`: a part of the prompt; parts are separated by an empty line."""

    role: Literal["system", "user"] | None = None
    """Informational only: the prompt is a single text."""
    content: Annotated[str, Field(min_length=1)]
    """Label of a column or step, or text with placeholders such as `{question}`."""


class FormatSpec(Block):
    """`options.format`: for `name: format`. A column with a list produces one prompt per entry."""

    steps: tuple[FormatStep, ...] = ()
    """Intermediate texts, built in this order."""
    messages: Annotated[tuple[FormatMessage, ...], Field(min_length=1)]
    """Parts of the prompt."""


Lines = Annotated[tuple[str, ...], BeforeValidator(as_list)]


class TemplateOptions(Block):
    """`template.options`: texts around the values."""

    role: Text = "energy strategist"
    """Role of the model."""
    intro: Lines = ()
    """Opening lines."""
    closing: Lines = ()
    """Closing lines."""
    format: FormatSpec | None = None
    """For `name: format`."""


class TemplateSpec(Block):
    """`data.template`: the template of the prompt."""

    name: Text = _BUILT_IN
    """`two_column_briefing`, `format`, or any name with `text`."""
    text: Annotated[str, Field(min_length=1)] | None = None
    """Prompt with `{col0_label}`, `{col0_value}`, … and the options `{role}`, `{intro}`, `{closing}`; other braces are
    kept."""
    columns: Annotated[tuple[ColumnSpec, ...], Field(min_length=1)]
    """The values."""
    options: TemplateOptions = Field(default_factory=TemplateOptions)
    """Texts around the values."""
    append_system_prompt: bool = False
    """Put `inference.system_prompt` before the prompt."""

    @model_validator(mode="after")
    def _known(self) -> TemplateSpec:
        built_in = self.name in {_BUILT_IN, _FORMAT}
        named = "name" in self.model_fields_set
        checks = (
            (
                # A built-in template has its own text.
                self.text is not None and built_in and named,
                "text",
                f"is not used by {self.name}",
                "use another name",
            ),
            (self.text is None and not built_in, "name", f"{show(self.name)} is not built in", "add template.text"),
            (
                self.text is None and self.name == _BUILT_IN and len(self.columns) < 2,
                "columns",
                f"{_BUILT_IN} needs at least two columns",
                "add one, or write the prompt as template.text",
            ),
            (
                (self.options.format is None) == (self.name == _FORMAT),
                "options",
                "`format` and `name: format` require each other",
                "write both or neither",
            ),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            raise many_wrong(faults)
        return self


class GraphTemplateData(Block):
    """`spec.data` with `type: graph_template`: a prompt built from the results of other tasks."""

    type: Literal["graph_template"]
    """`graph_template`"""
    template: TemplateSpec
    """Template of the prompt."""
