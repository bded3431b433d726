"""`data.type: graph_template`: a prompt built from the results of other tasks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.errors import ReferenceFault
from tunefleet.spec.base import Block, Text, as_list, many_wrong, only, wrong
from tunefleet.spec.expressions.lookup import Envelopes, as_text, look_up
from tunefleet.spec.expressions.placeholders import (
    MAX_PLACEHOLDER,
    Reference,
    Stray,
    escape,
    path_hint,
    reference,
    rooted,
)
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.text import Path
from tunefleet.validation_errors import show

_BUILT_IN: Final = "two_column_briefing"
_FORMAT: Final = "format"
_SYSTEM_PROMPTS: Final = ("system_prompt", "systemPrompt")
_PROMPTS: Final = "The output of the template"
_SLOT = re.compile(r"\{([^{}\r\n]+)\}")


def is_template(spec: Any) -> bool:
    """Whether the data of a spec is a `graph_template`."""
    data = spec.get("data") if isinstance(spec, Mapping) else None
    return isinstance(data, Mapping) and data.get("type") == "graph_template"


def columns(spec: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the columns of a spec's template that are mappings, with their paths."""
    template = spec["data"].get("template") if is_template(spec) else None
    found = template.get("columns") if isinstance(template, Mapping) else None
    for index, column in enumerate(found if isinstance(found, list) else ()):
        if isinstance(column, Mapping):
            yield ("data", "template", "columns", index), column


def named_by(column: Mapping[str, Any], names: Collection[str] = ()) -> Reference | Stray | None:
    """Return the reference of a column; `None` if it has none or is invalid."""
    node, path, expr = column.get("node"), column.get("path"), column.get("expr")
    if isinstance(expr, str) and "${" not in expr:
        hint = path_hint(expr) if len(expr) > MAX_PLACEHOLDER else "write it like branch-a.result.text"
        return rooted(expr, names) or Stray(expr, "is not a node with a path", hint)
    if isinstance(node, str) and isinstance(path, str) and "${" not in path:
        return reference(node, path) or Stray(path, "is not a path", path_hint(path))
    return None


def settle_system_prompt(spec: dict[str, Any]) -> None:
    """Remove the system prompt from a spec whose template does not request it."""
    asked, inference = spec["data"]["template"].get("append_system_prompt"), spec.get("inference")
    if asked is not True and isinstance(inference, Mapping):
        spec["inference"] = {key: value for key, value in inference.items() if key not in _SYSTEM_PROMPTS}


def to_list(
    data: Mapping[str, Any], envelopes: Envelopes, room: SizeBudget, made: SizeBudget | None = None
) -> dict[str, Any]:
    """Convert `graph_template` data to `list` data.

    Args:
        data: The block, with its strings already resolved.
        envelopes: The results of the upstream tasks.
        room: Counts the values of the columns.
        made: Counts the prompts; default: the limit of one task.

    Raises:
        ReferenceFault: If a column has no value and no default; names the column. If a limit is exceeded.
    """
    template = GraphTemplateData.model_validate(data, by_alias=True, by_name=False).template
    values = [
        (column.label or f"Column {at}", _value(column, envelopes, room))
        for at, column in enumerate(template.columns, 1)
    ]
    return {"type": "list", "items": prompts(template, values, made or SizeBudget())}


def prompts(template: TemplateSpec, values: Sequence[tuple[str, Any]], room: SizeBudget) -> list[str]:
    """Return the prompts of a template: one, or several for `format` with lists.

    Args:
        values: Label and value of each column.
        room: Counts each prompt and its parts before it is built.

    Raises:
        ReferenceFault: If lists have different lengths, or a limit is exceeded.
    """
    if template.options.format is not None:
        return _formatted(template.options.format, dict(values), room)
    options = template.options
    texts = [(label, as_text(value)) for label, value in values]
    if template.text is None:
        return ["\n".join([*_opening(options), *(_column_line(*each) for each in texts), *_ending(options, texts)])]
    slots = {f"col{at}_label": label for at, (label, _) in enumerate(texts)}
    slots |= {f"col{at}_value": value for at, (_, value) in enumerate(texts)}
    slots |= {"role": options.role, "intro": "\n".join(options.intro), "closing": "\n".join(options.closing)}
    return [_filled(template.text, slots, room)]


def _opening(options: TemplateOptions) -> Sequence[str]:
    article = "an" if options.role[0].lower() in "aeiou" else "a"
    return options.intro or (f"You are {article} {options.role}. These notes look at one question from several sides:",)


def _ending(options: TemplateOptions, texts: Sequence[tuple[str, str]]) -> Sequence[str]:
    sides = " and ".join(label for label, _ in texts)
    return options.closing or (f"Write a short briefing in two columns that weighs {sides}, and say what to do.",)


def _column_line(label: str, value: str) -> str:
    lines = value.replace("\r\n", "\n").strip().split("\n")
    return f"- {label}: " + "\n  ".join(lines)


def _value(column: ColumnSpec, envelopes: Envelopes, room: SizeBudget) -> Any:
    if column.data is not None:
        return list(column.data.items)
    named = named_by(column.model_dump(include={"node", "path", "expr"}), envelopes.keys())
    optional = "default" in column.model_fields_set
    try:
        if not isinstance(named, Reference):
            path = column.expr or column.path or ""
            hint = path_hint(path)
            raise ReferenceFault(f"{show(path)} is not a path.", hint=f"{hint[:1].upper()}{hint[1:]}.")
        value = look_up(named, envelopes, room, hints=not optional)
        room.take_value(named.text, value)
        return _escaped(value)
    except ReferenceFault as fault:
        # An exceeded limit is an error even for a column with a default.
        if room.is_spent:
            raise
        if optional:
            return column.default
        label = f"Column {show(column.label)} has no value and no default: " if column.label else ""
        raise ReferenceFault(f"{label}{fault.message}", hint=fault.hint) from None


def _escaped(value: Any) -> Any:
    return [_escaped(each) for each in value] if isinstance(value, list) else escape(as_text(value))


def _formatted(form: FormatSpec, values: dict[str, Any], room: SizeBudget) -> list[str]:
    rows = max((len(value) for value in values.values() if isinstance(value, list)), default=1)
    table = {label: _per_prompt(label, value, rows, room) for label, value in values.items()}
    for step in form.steps:
        names = {each.label: each.value for each in step.arguments}
        table[step.label] = _per_row(step.template, rows, table, names, room)
    parts = [table.get(each.content) or _per_row(each.content, rows, table, {}, room) for each in form.messages]
    return ["\n\n".join(_counted([part[row] for part in parts], room)) for row in range(rows)]


def _per_prompt(label: str, value: Any, rows: int, room: SizeBudget) -> list[str]:
    # A scalar column is repeated for each prompt.
    entries = [as_text(each) for each in value] if isinstance(value, list) else [as_text(value)]
    if len(entries) not in {1, rows}:
        raise ReferenceFault(f"Column {show(label)} has {len(entries)} entries, but another one has {rows}.")
    room.take(_PROMPTS, values=rows)
    return entries if len(entries) == rows else entries * rows


def _per_row(
    text: str, rows: int, table: Mapping[str, list[str]], names: Mapping[str, str], room: SizeBudget
) -> list[str]:
    slots = {slot: table[names.get(slot, slot)] for slot in _SLOT.findall(text) if names.get(slot, slot) in table}
    return [_filled(text, {slot: found[row] for slot, found in slots.items()}, room) for row in range(rows)]


def _filled(text: str, slots: Mapping[str, str], room: SizeBudget) -> str:
    """Replace `{slot}` once; inserted values are not expanded again, and unknown braces are kept."""
    return "".join(_counted(_pieces(text, slots), room))


def _pieces(text: str, slots: Mapping[str, str]) -> list[str]:
    made, end = [], 0
    for match in _SLOT.finditer(text):
        made += [text[end : match.start()], slots.get(match[1], match[0])]
        end = match.end()
    return [*made, text[end:]]


def _counted(texts: list[str], room: SizeBudget) -> list[str]:
    room.take(_PROMPTS, characters=sum(map(len, texts)), values=1)
    return texts


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
