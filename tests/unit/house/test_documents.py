"""The documents say what is there, and nothing that is not; `make check` looks for faults of the whole tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import check_docs

GLOSSARY = {
    "adapter",
    "agent",
    "artifact",
    "attempt",
    "campaign",
    "checkpoint",
    "chunk",
    "command",
    "cycle",
    "executor",
    "job",
    "launch",
    "merged-model",
    "project",
    "provider",
    "reason",
    "round",
    "stage",
    "strategy",
    "supervisor",
    "task",
    "update",
    "version",
    "worker",
    "workflow",
}


def test_the_glossary_has_every_word(repository: Path) -> None:
    headings = check_docs._anchors((repository / "docs/glossary.md").read_text(encoding="utf-8"))
    assert not GLOSSARY - headings


def test_every_folder_of_the_package_stands_in_the_page_on_architecture(repository: Path) -> None:
    page = (repository / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (repository / "src/tunefleet").glob("*/__init__.py")}
    table = page.partition("| package | purpose |")[2].partition("\n\n")[0]
    listed = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)/`", row.split("|")[1] if "|" in row else "")
    ]
    assert sorted(listed) == sorted(folders)


def test_a_command_line_that_does_not_exist_is_a_fault() -> None:
    assert check_docs.command_fault(["submit", "--help"]) is None
    assert "is no command" in str(check_docs.command_fault(["sumbit", "x.yaml"]))
    assert "--fast is no option of submit" in str(check_docs.command_fault(["submit", "x.yaml", "--fast"]))


def test_command_lines_are_found_in_blocks_and_in_text() -> None:
    page = (
        "Say `tunefleet ls` and `make x`.\n```\nA=1 tunefleet up --port 1    # why\n.venv/bin/tunefleet show X\n```\n"
    )
    assert check_docs.command_lines(page) == [["up", "--port", "1"], ["show", "X"], ["ls"]]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("hint=f'Use `tunefleet federation start {row.id}`.'", None),
        ("hint=f'Use `tunefleet federation resume {row.id}`.'", "resume is no command"),
        ("hint=f'`tunefleet federation token {row.id} --for NAME` makes it.'", None),
        ("hint=f'`tunefleet federation token {row.id} --name NAME` makes it.'", "--name is no option of token"),
        ("hint=f'Use `tunefleet campaign {verb} {row.name}`.'", None),
        ("hint='Let an admin raise it: tunefleet projects sett P --storage N.'", "sett is no command"),
        ("hint=('Run `tunefleet ' 'doctr`.')", "doctr is no command"),
        ("f'Follow: tunefleet logs -f {task.id}   Plot: tunefleet metrics --plots {task.id}'", "--plots is no option"),
        ("'TUNEFLEET_DATABASE_URL=postgresql://… tunefleet backup --to fleet.zip'", "--to is no option of backup"),
        ("'the tunefleet client does so'", None),
    ],
)
def test_a_hint_with_a_command_that_does_not_exist_is_found(code: str, fault: str | None) -> None:
    found = [check_docs.command_fault(words) for _, words in check_docs.text_commands(code)]
    assert [fault in str(each) for each in found if each] == ([] if fault is None else [True])


def test_a_map_of_tests_that_is_wrong_is_found(repository: Path, tmp_path: Path) -> None:
    for name in (check_docs.TEST_MAP, check_docs.WEEKLY):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text((repository / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_new.py").write_text("@pytest.mark.story\nasync def test_it(): ...\n")
    weekly = tmp_path / check_docs.WEEKLY
    weekly.write_text(weekly.read_text(encoding="utf-8").replace("proofs AREA=agent", "proofs"), encoding="utf-8")
    page = tmp_path / check_docs.TEST_MAP
    page.write_text(page.read_text(encoding="utf-8").replace("| `worker` |", "| `wroker` |"), encoding="utf-8")
    found = check_docs.map_faults(tmp_path)
    marked = [fault for fault in found if fault.endswith("is not marked as a story")]
    assert len(marked) == len(check_docs.stories(repository)), "none of the stories is in this tree"
    assert set(found) - set(marked) == {
        f"{check_docs.TEST_MAP}: lacks the story tests/test_new.py::test_it",
        f"{check_docs.TEST_MAP}: wroker is no area",
        f"{check_docs.TEST_MAP}: lacks the area worker",
        f"{check_docs.WEEKLY}: does not run the area agent",
    }
