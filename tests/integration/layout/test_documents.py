"""The documents in a repository: every page can be reached, and faults are found in the files that git tracks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import check_docs


def test_every_page_can_be_reached_from_the_readme(repository: Path) -> None:
    reached: set[Path] = set()
    open_pages = [repository / "README.md"]
    while open_pages:
        page = open_pages.pop()
        reached.add(page)
        for link in check_docs.LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                open_pages.append(target)
    lost = [str(page.relative_to(repository)) for page in check_docs.documents(repository) if page not in reached]
    assert [name for name in lost if name.startswith("docs/")] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository with one table and one test."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs/reference").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("class TestB:\n    def test_c(self): ...\n\ndef test_d(): ...\n")
    return tmp_path


def _table(tree: Path, *lines: str) -> list[str]:
    head = "| Item | Ours | Status | Test |\n|---|---|---|---|\n"
    (tree / check_docs.COMPATIBILITY).write_text(head + "\n".join(lines) + "\n")
    return check_docs.compatibility_faults(tree)


@pytest.mark.parametrize(
    "name",
    ["tests/test_a.py", "tests/test_a.py::test_d", "tests/test_a.py::test_d[1]", "tests/test_a.py::TestB::test_c"],
)
def test_a_row_may_name_a_test_that_exists(tree: Path, name: str) -> None:
    assert _table(tree, f"| `X` | same | built | `{name}` |") == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| `X` | same | built | |", "no test is named"),
        ("| `X` | same | built | `tests/test_b.py` |", "does not exist"),
        ("| `X` | same | built | `tests/test_a.py::test_e` |", "does not exist"),
        ("| `X` | same | planned | `tests/test_a.py::test_e` |", "does not exist"),
        ("| `X` | same | differs | |", "no test is named"),
        ("| `X` | | built | `tests/test_a.py::test_d` |", "a cell is empty"),
        ("| `X` | same | soon | `tests/test_a.py::test_d` |", "must be one of"),
    ],
)
def test_a_row_that_proves_nothing_is_a_fault(tree: Path, row: str, fault: str) -> None:
    assert [fault in line for line in _table(tree, row)] == [True]


def test_a_link_that_leads_nowhere_is_a_fault(tree: Path) -> None:
    (tree / "b.md").write_text("# One heading\n")
    (tree / "a.md").write_text(
        "[x](b.md) [x](b.md#one-heading) [x](c.md) [x](b.md#two) [x](https://example.org/c.md)\n"
    )
    assert check_docs.broken_links(tree) == [
        "a.md: link to c.md, which does not exist",
        "a.md: link to b.md#two, which has no such heading",
    ]


def test_a_path_of_one_machine_is_a_fault(tree: Path) -> None:
    (tree / "a.py").write_text("PATH = '/ho" + "me/somebody/data'\n")
    assert [line.startswith("a.py:1: ") for line in check_docs.machine_paths(tree)] == [True]
