"""Overrides of values in a workflow before it is submitted (`--set`, clone)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.text import read_text

# Longer digit strings cannot be list indexes, and Python limits what `int()` parses.
_INDEX_DIGITS: Final = 10
_TOP_LEVEL: Final = {"apiVersion", "kind", "metadata", "spec"}


def deep_set(document: dict[str, Any], path: str, value: Any) -> None:
    """Set one value in place; missing mappings are created.

    Args:
        document: A workflow, or the mapping below its `spec`.
        path: Dotted path below `spec`, such as `training.learning_rate`, `data.prompts.0` or, by the name of a stage,
            `stages.prepare.spec.priority`; in a workflow it may also start with `spec` or `metadata`.

    Raises:
        SpecError: If the path is empty, or passes through a value that is neither a mapping nor a list.
    """
    parts = path.split(".")
    if not all(parts):
        raise SpecError([Fault(path, "is not a path", hint="write it like training.learning_rate")], filename="--set")
    if "spec" in document and parts[0] not in _TOP_LEVEL:
        parts = ["spec", *parts]
    here: Any = document
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        where = ".".join(parts[: depth + 1])
        if isinstance(here, list):
            here = _in_list(here, part, where, value, last=last)
        elif isinstance(here, dict):
            if last:
                here[part] = value
            elif here.get(part) is None:
                here[part] = {}
            here = here[part]
        else:
            raise SpecError([Fault(path, f"passes through {'.'.join(parts[:depth])}, which is a single value")])


def _in_list(items: list[Any], part: str, where: str, value: Any, *, last: bool) -> Any:
    names = [_name_of(item) for item in items]
    index = (
        names.index(part)
        if part in names
        else int(part)
        if part.isdecimal() and len(part) < _INDEX_DIGITS
        else len(items)
    )
    if index >= len(items):
        known = ", ".join(name for name in names if name) or str(len(items))
        raise SpecError([Fault(where, f"is not an entry of the list, which has {known}", hint="count from 0")])
    if last:
        items[index] = value
    return items[index]


def _name_of(item: Any) -> str | None:
    """Return the name of an entry, such as a stage."""
    name = (item.get("name") or item.get("id")) if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def parse_value(text: str) -> Any:
    """Parse the value of `--set path=value` as YAML: `3`, `5e-7`, `true`, `[a, b]`, `null`, or a string.

    Args:
        text: The value; invalid YAML is used as a string.
    """
    try:
        return read_text(text).data
    except SpecError:
        return text


def override_document(text: str, overrides: Mapping[str, Any], *, filename: str | None = None) -> str:
    """Return a workflow with some values changed.

    Args:
        text: YAML or JSON.
        overrides: Dotted path → new value, as for `deep_set`. If empty, the text is returned unchanged.
        filename: Its name, for messages.

    Returns:
        YAML in the order of the original, without its comments.

    Raises:
        SpecError: If the text is not a mapping, or a path does not fit it.
    """
    if not overrides:
        return text
    document = read_text(text, filename=filename).data
    if not isinstance(document, dict):
        raise SpecError([Fault("", "the file is not a mapping (`key: value` lines)", 1, 1)], filename=filename)
    document.setdefault("spec", {})
    # YAML aliases share one object; a copy through JSON separates them, so that only the given path changes.
    document = json.loads(json.dumps(document))
    for path, value in overrides.items():
        deep_set(document, path, value)
    written: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return written
