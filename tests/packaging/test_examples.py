"""The index of the examples: none is missing, each is there, and each command is one that can be typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.check_docs import tracked
from tests.documents import command_lines

ROW = re.compile(r"^\| \[[^\]]+\]\(([^)]+)\) \| .+ \| `([^`]+)` \|$", re.MULTILINE)
STARTED = {".yaml", ".ipynb", ".env", ".service"}
"""What is an example by itself; of Python, what the index names of a folder."""


@pytest.fixture(scope="module")
def rows(repository: Path) -> list[tuple[str, str]]:
    """Each example's path below `examples/`, and its command."""
    found = ROW.findall((repository / "examples/README.md").read_text(encoding="utf-8"))
    assert len(found) > 30
    return found


def test_no_example_is_missing_and_none_is_named_that_is_not_there(
    repository: Path, rows: list[tuple[str, str]]
) -> None:
    folder = repository / "examples"
    named = {path for path, _ in rows}
    there = [path.relative_to(folder) for path in tracked(repository) if folder in path.parents]
    assert {str(path) for path in there if path.suffix in STARTED} - named == set()
    assert named - {str(path) for path in there} == set()
    of_python = {path.parts[0] for path in there if path.suffix == ".py"} - {"workflows"}
    assert of_python <= {path.partition("/")[0] for path in named}
    assert len(named) == len(rows), "one is named twice"


def test_each_command_can_be_typed_and_is_about_its_example(repository: Path, rows: list[tuple[str, str]]) -> None:
    assert [fault for _, command in rows if (fault := command_lines.fault(command))] == []
    for path, command in rows:
        for word in re.findall(r"(?:\./)?examples/\S+", command):
            assert (repository / word).exists(), command
        if command.startswith(("tunefleet submit", "python")):
            assert f"examples/{path}" in command


def test_the_readme_of_the_documents_leads_to_the_index(repository: Path) -> None:
    assert "(../examples/README.md)" in (repository / "docs/README.md").read_text(encoding="utf-8")
