"""What the page on architecture names is there, and what is there is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

NAMED = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)*\.py)(?:::(\w+))?`")
PACKAGES = re.compile(r"`([a-z_]+)/`")


def test_each_file_and_function_that_is_named_is_there(repository: Path) -> None:
    page = (repository / "docs/explanation/architecture.md").read_text()
    source = repository / "src" / "tunefleet"
    named = NAMED.findall(page)
    assert sum(bool(function) for _, function in named) > 40
    wrong = [
        f"{file}::{name}"
        for file, name in named
        if not _has((repository if file.startswith("tests") else source) / file, name)
    ]
    assert wrong == []


def test_each_package_is_named(repository: Path) -> None:
    page = (repository / "docs/explanation/architecture.md").read_text()
    there = {path.parent.name for path in (repository / "src" / "tunefleet").glob("*/__init__.py")}
    assert there <= set(PACKAGES.findall(page))


def _has(file: Path, name: str) -> bool:
    if not file.is_file():
        return False
    return not name or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        for node in ast.parse(file.read_text()).body
    )
