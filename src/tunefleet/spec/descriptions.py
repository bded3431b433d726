"""The text below an attribute of a block is its description. It is read when somebody asks, which few processes do.

pydantic's own way reads the source again for each class that is made: a fifth of what our processes take to start.
"""

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
    """Return the descriptions of a block's fields by the fields' names; what `Field(description=…)` says counts more.

    Args:
        block: The model; a field that it declares anew has what it says there, and nothing else.
    """
    found: dict[str, str] = {}
    for owner in reversed(block.__mro__):
        if owner is not BaseModel and issubclass(owner, BaseModel):
            written = _written(owner.__module__).get(owner.__qualname__, {})
            declared = inspect.get_annotations(owner)
            found = {name: text for name, text in found.items() if name not in declared} | dict(written)
    found |= {name: field.description for name, field in block.model_fields.items() if field.description}
    return {name: found[name] for name in block.model_fields if name in found}


@cache
def _written(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the texts below the attributes of a module's classes, by the classes' qualified names."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}  # installed without its source, or made by hand
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
