"""`postprocess.jsonl_export`: a JSONL file of the answers, for a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tunefleet.errors import DataError
from tunefleet.spec.expressions.lookup import as_text
from tunefleet.spec.options.export import ExportField, JsonlExportSpec
from tunefleet.workloads.common.outputs import write_file


def export(wanted: JsonlExportSpec, items: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Write the file whole or not at all.

    Raises:
        DataError: If a line lacks a required field; names item and field.
    """
    lines = [_line(wanted, number, item) for number, item in enumerate(items)]
    target = folder / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    return {"path": wanted.path, "record_count": len(lines), "fields": list(wanted.fields)}


def _line(wanted: JsonlExportSpec, number: int, item: Mapping[str, Any]) -> dict[str, str]:
    line = {}
    for name, field in wanted.fields.items():
        text = as_text_or_empty(_value(field, item))
        if not text and name in wanted.required_fields:
            raise DataError(
                f"Item {item.get('index', number)} has no {name!r}, which `postprocess.jsonl_export` requires.",
                hint="Leave it out of required_fields, or give the field a fallback or a default.",
            )
        line[name] = text
    return line


def as_text_or_empty(value: Any) -> str:
    """Return a value as an exported line has it: a text, anything else as JSON, nothing as an empty text."""
    return "" if value is None else as_text(value)


def _value(field: ExportField, item: Mapping[str, Any]) -> Any:
    found = _found(field, item)
    if found in (None, "") and field.other is not None:
        found = _value(field.other, item)
    return field.default if found in (None, "") and field.default is not None else found


def _found(field: ExportField, item: Mapping[str, Any]) -> Any:
    if field.kind == "literal":
        return field.text
    if field.kind in {"prompt", "output"}:
        return item.get(field.kind)
    place = item if field.kind == "item" else item.get("metadata") or {}
    return place.get(field.key or "")
