"""Descriptions of fields, from the docstring below each attribute, read on demand."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def descriptions(block: type[BaseModel]) -> Mapping[str, str]:
    """Return the descriptions of a block's fields by name; `Field(description=…)` takes precedence.

    Args:
        block: The model; a field that it redeclares does not inherit a description.
    """
    # Not pydantic's `use_attribute_docstrings`: it parses the source for each class, a fifth of our start-up time.
    found: dict[str, str] = {}
    # Base classes first, so that a subclass overrides their descriptions.
    for owner in reversed(block.__mro__):
        if owner is not BaseModel and issubclass(owner, BaseModel):
            written = _written(owner.__module__).get(owner.__qualname__, {})
            declared = inspect.get_annotations(owner)
            found = {name: text for name, text in found.items() if name not in declared} | dict(written)
    found |= {name: field.description for name, field in block.model_fields.items() if field.description}
    return {name: found[name] for name in block.model_fields if name in found}


@cache
def _written(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the attribute docstrings of a module's classes, by the classes' qualified names."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}  # installed without its source, or created dynamically
    found: dict[str, Mapping[str, str]] = {}
    _collect(ast.parse(source).body, "", found)
    return found


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, Mapping[str, str]]) -> None:
    for each in body:
        if isinstance(each, ast.ClassDef):
            found[f"{prefix}{each.name}"] = dict(_texts(each.body))
            _collect(each.body, f"{prefix}{each.name}.", found)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            _collect(each.body, f"{prefix}{each.name}.<locals>.", found)


def _texts(body: list[ast.stmt]) -> list[tuple[str, str]]:
    found = []
    for before, after in pairwise(body):
        if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found.append((before.target.id, inspect.cleandoc(after.value.value)))
    return found
