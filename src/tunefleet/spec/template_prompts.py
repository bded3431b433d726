"""From `graph_template` data to prompts: what the columns name, and the text that is made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tunefleet.errors import ReferenceFault
from tunefleet.spec.graph_template import ColumnSpec, FormatSpec, GraphTemplateData, TemplateOptions, TemplateSpec
from tunefleet.spec.lookup import Envelopes, as_text, look_up
from tunefleet.spec.placeholders import Reference, Stray, escape, reference, rooted
from tunefleet.spec.text import Path

_PATH_HINT: Final = "write it like result.items[0].output; `result.` may be left out"
_SYSTEM_PROMPTS: Final = ("system_prompt", "systemPrompt")
_SLOT = re.compile(r"\{([^{}\r\n]+)\}")


def is_template(spec: Any) -> bool:
    """Whether the data of a spec are a `graph_template`."""
    data = spec.get("data") if isinstance(spec, Mapping) else None
    return isinstance(data, Mapping) and data.get("type") == "graph_template"


def columns(spec: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the columns of a spec's template with their places, as far as they are mappings."""
    template = spec["data"].get("template") if is_template(spec) else None
    found = template.get("columns") if isinstance(template, Mapping) else None
    for index, column in enumerate(found if isinstance(found, list) else ()):
        if isinstance(column, Mapping):
            yield ("data", "template", "columns", index), column


def named_by(column: Mapping[str, Any], names: Collection[str] = ()) -> Reference | Stray | None:
    """Return what a column refers to; None if it refers to nothing, or is faulty in itself."""
    node, path, expr = column.get("node"), column.get("path"), column.get("expr")
    if isinstance(expr, str) and "${" not in expr:
        return rooted(expr, names) or Stray(expr, "is not a node with a path", "write it like branch-a.result.text")
    if isinstance(node, str) and isinstance(path, str) and "${" not in path:
        return reference(node, path) or Stray(path, "is not a path", _PATH_HINT)
    return None


def settle_system_prompt(spec: dict[str, Any]) -> None:
    """Leave the system prompt out of a spec whose template does not ask for it; a list has it before each prompt."""
    asked, inference = spec["data"]["template"].get("append_system_prompt"), spec.get("inference")
    if asked is not True and isinstance(inference, Mapping):
        spec["inference"] = {key: value for key, value in inference.items() if key not in _SYSTEM_PROMPTS}


def to_list(data: Mapping[str, Any], envelopes: Envelopes) -> dict[str, Any]:
    """Make `list` data out of `graph_template` data.

    Args:
        data: The block; its texts are resolved already.
        envelopes: The results of the tasks before.

    Raises:
        ReferenceFault: If a column has no value and no default; names the column.
    """
    template = GraphTemplateData.model_validate(data, by_alias=True, by_name=False).template
    values = [
        (column.label or f"Column {at}", _value(column, envelopes)) for at, column in enumerate(template.columns, 1)
    ]
    return {"type": "list", "items": prompts(template, values)}


def prompts(template: TemplateSpec, values: Sequence[tuple[str, Any]]) -> list[str]:
    """Return the prompts of a template: one, but for `format` with lists.

    Args:
        template: The template.
        values: Label and value of each column.

    Raises:
        ReferenceFault: If lists of different lengths would have to be one.
    """
    if template.options.format is not None:
        return _formatted(template.options.format, dict(values))
    options = template.options
    texts = [(label, as_text(value)) for label, value in values]
    if template.text is None:
        return ["\n".join([*_opening(options), *(_column_line(*each) for each in texts), *_ending(options, texts)])]
    slots = {f"col{at}_label": label for at, (label, _) in enumerate(texts)}
    slots |= {f"col{at}_value": value for at, (_, value) in enumerate(texts)}
    slots |= {"role": options.role, "intro": "\n".join(options.intro), "closing": "\n".join(options.closing)}
    return [_filled(template.text, slots)]


def _opening(options: TemplateOptions) -> Sequence[str]:
    article = "an" if options.role[0].lower() in "aeiou" else "a"
    return options.intro or (f"You are {article} {options.role}. These notes look at one question from several sides:",)


def _ending(options: TemplateOptions, texts: Sequence[tuple[str, str]]) -> Sequence[str]:
    sides = " and ".join(label for label, _ in texts)
    return options.closing or (f"Write a short briefing in two columns that weighs {sides}, and say what to do.",)


def _column_line(label: str, value: str) -> str:
    lines = value.replace("\r\n", "\n").strip().split("\n")
    return f"- {label}: " + "\n  ".join(lines)


def _value(column: ColumnSpec, envelopes: Envelopes) -> Any:
    if column.data is not None:
        return list(column.data.items)
    named = named_by(column.model_dump(include={"node", "path", "expr"}), tuple(envelopes))
    try:
        if not isinstance(named, Reference):
            raise ReferenceFault(f"{column.expr or column.path!r} is not a path.", hint=f"W{_PATH_HINT[1:]}.")
        return _escaped(look_up(named, envelopes))
    except ReferenceFault as fault:
        if "default" in column.model_fields_set:
            return column.default
        label = f"The column {column.label!r} has no value and no default: " if column.label else ""
        raise ReferenceFault(f"{label}{fault.message}", hint=fault.hint) from None


def _escaped(value: Any) -> Any:
    return [_escaped(each) for each in value] if isinstance(value, list) else escape(as_text(value))


def _formatted(wanted: FormatSpec, values: dict[str, Any]) -> list[str]:
    rows = max((len(value) for value in values.values() if isinstance(value, list)), default=1)
    table = {label: _spread(label, value, rows) for label, value in values.items()}
    for step in wanted.steps:
        names = {each.label: each.value for each in step.arguments}
        table[step.label] = _per_row(step.template, rows, table, names)
    parts = [table.get(each.content) or _per_row(each.content, rows, table, {}) for each in wanted.messages]
    return ["\n\n".join(part[row] for part in parts) for row in range(rows)]


def _spread(label: str, value: Any, rows: int) -> list[str]:
    entries = [as_text(each) for each in value] if isinstance(value, list) else [as_text(value)]
    if len(entries) not in {1, rows}:
        raise ReferenceFault(f"The column {label!r} has {len(entries)} entries, and another one has {rows}.")
    return entries if len(entries) == rows else entries * rows


def _per_row(text: str, rows: int, table: Mapping[str, list[str]], names: Mapping[str, str]) -> list[str]:
    slots = {slot: table[names.get(slot, slot)] for slot in _SLOT.findall(text) if names.get(slot, slot) in table}
    return [_filled(text, {slot: found[row] for slot, found in slots.items()}) for row in range(rows)]


def _filled(text: str, slots: Mapping[str, str]) -> str:
    """Replace `{slot}`; what a value brings is not looked at again, and unknown braces stay."""
    return _SLOT.sub(lambda match: slots.get(match[1], match[0]), text)
