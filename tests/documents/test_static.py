"""What every page shows exists: commands and their options, documents, variables, routes, and names of the SDK."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import check_docs
from tests.documents import command_lines, names, samples
from tests.documents.blocks import ROOT, SHELLS, Block, blocks, every_block, pages

_KNOWN = SHELLS | {"yaml", "python", "json", "toml", "nginx", "sql"}
_REASON = 8
"""Characters: what is shorter is no reason."""
_SOURCE = ROOT / "src/tunefleet"
_FEDERATION = (
    "federation",
    "orchestrator/federation",
    "workloads/federated",
    "spec/federat*.py",
    "client/*federat*.py",
)
_OF_TASKS = {"show", "ls", "pause", "resume", "stop", "retry", "rm", "abort", "checkpoints", "logs", "follow", "watch"}
"""Commands of tasks for which a federation has its own, or which it has no use for."""


def _page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=_page)
def test_each_command_of_a_page_is_one_that_the_program_takes(page: Path) -> None:
    faults = [command_lines.fault(command.text) for block in blocks(page) for command in block.commands]
    assert [fault for fault in faults if fault] == []


def test_each_command_in_a_text_of_the_code_is_one_that_the_program_takes() -> None:
    sources = sorted(_SOURCE.rglob("*.py"))
    found = [(path, *each) for path in sources for each in check_docs.text_commands(path.read_text(encoding="utf-8"))]
    assert len(found) > 400, "the texts are not found"
    faults = [(path.relative_to(ROOT), line, check_docs.command_fault(words)) for path, line, words in found]
    assert [fault for fault in faults if fault[-1]] == []


def test_hints_of_federations_name_the_commands_of_federations() -> None:
    places = [found for pattern in _FEDERATION for found in _SOURCE.glob(pattern)]
    modules = sorted({module for place in places for module in (place.rglob("*.py") if place.is_dir() else [place])})
    lines = [words for path in modules for _, words in check_docs.text_commands(path.read_text(encoding="utf-8"))]
    assert len([words for words in lines if words[0] == "federation"]) >= 15, "the hints are not found"
    assert [words for words in lines if words[0] in _OF_TASKS | {"campaign"}] == []


@pytest.mark.parametrize("page", pages(), ids=_page)
def test_each_document_that_a_page_shows_is_read(page: Path) -> None:
    assert [fault for block in blocks(page) if (fault := samples.fault(block))] == []


_OTHER_ROUTES = {"compatibility.md", "http-api.md"}
"""Reference pages with routes of others, or below a prefix that their heading names."""


def test_each_route_that_a_reference_or_explanation_names_exists() -> None:
    found = [*(ROOT / "docs/reference").glob("*.md"), *(ROOT / "docs/explanation").glob("*.md")]
    text = {page.name: page.read_text(encoding="utf-8") for page in found if page.name not in _OTHER_ROUTES}
    assert [f"{name}: {fault}" for name, own in text.items() for fault in names.unknown_routes(own)] == []


def test_each_page_of_the_web_page_that_a_text_names_exists() -> None:
    texts = {_page(page): page.read_text(encoding="utf-8") for page in check_docs.documents()}
    texts |= {_page(path): path.read_text(encoding="utf-8") for path in _SOURCE.rglob("*.py")}
    texts |= dict(check_docs.other_texts())
    assert [f"{name}: {fault}" for name, own in texts.items() for fault in names.unknown_pages(own)] == []


@pytest.mark.parametrize("check", [names.unknown_variables, names.unknown_routes, names.unknown_calls])
def test_what_a_page_names_exists(check: Callable[[str], Iterator[str]]) -> None:
    text = {_page(page): page.read_text(encoding="utf-8") for page in pages()}
    assert [f"{page}: {fault}" for page, own in text.items() for fault in check(own)] == []


def test_every_block_has_a_language_that_is_looked_at_and_every_exception_a_reason() -> None:
    for block in every_block():
        assert block.language in _KNOWN, block.where
        for note in block.notes:
            if note.verb in {"skip", "shown", "foreign"}:
                assert len(note.said) >= _REASON, f"{block.where}: why?"
            named = re.findall(r"\btests/[\w/]+(?:\.py)?", note.said)
            assert [name for name in named if not (ROOT / name).exists()] == [], block.where
            if note.words:
                assert any(note.words in each.text for each in block.commands), f"{block.where}: {note.words!r}"


def test_no_comment_for_a_block_is_lost() -> None:
    """A comment that is written in another way would be no comment, and the block would be taken as it is."""
    for page in pages():
        written = len(re.findall(r"<!-- *(?:skip|file|run|shown|foreign)\b", page.read_text(encoding="utf-8")))
        assert written == sum(len(block.notes) for block in blocks(page)), page


def test_nothing_is_shown_outside_of_a_fence() -> None:
    """A block that is only indented has no language, and no test sees it."""
    for page in pages():
        before = ""
        fenced = in_list = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if re.match(r" *(?:[-*]|\d+\.) ", line):
                in_list = True
            elif line and not line.startswith(" "):
                in_list = False
            assert fenced or in_list or before or not line.startswith("    "), f"{page}:{number}: {line}"
            before = line.strip()


_BLOCK = Block("page.md", 1, "", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tunefleet submit run.yaml --folow", "No such option: --folow"),
        ("tunefleet submit", "Missing argument 'FILE'"),
        ("tunefleet keys creat ada", "creat is no command of keys"),
        ("tunefleet keys create ada ben", "unexpected extra argument"),
        ("export A=b && tunefleet sumbit x", "sumbit is no command"),
        ("TUNEFLEET_DATA=x python -m tunefleet.api --dta y", "unrecognized arguments: --dta"),
        ("python -m tunefleet.nothing", "tunefleet.nothing does not exist"),
        ("pip install 'tunefleet[trian]'", "trian is no extra"),
        ("python examples/nothing.py", "examples/nothing.py does not exist"),
        ("make nothing", "nothing is no target"),
    ],
)
def test_a_wrong_command_is_found(line: str, said: str) -> None:
    assert said in str(command_lines.fault(line))


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("yaml", "spec: {taskType: lora_sft, training: {max_step: 3}}", "max_step"),
        ("yaml", "training: {learning_rat: 1}", "learning_rat"),
        ("yaml", "daily: {tracking: [nobody, 3]}", "daily"),
        ("python", "from tunefleet import Cleint", "tunefleet has no Cleint"),
        ("python", "client.tasks.paus('x')", "there is no paus"),
        ("python", "client.submit('x', override={})", "takes no override"),
        ("json", "{", "Expecting property name"),
        ("toml", '[project.entry-points."tunefleet.things"]\na = "b:c"', "tunefleet.things"),
    ],
)
def test_a_wrong_document_is_found(language: str, text: str, said: str) -> None:
    assert said in str(samples.fault(replace(_BLOCK, language=language, text=text)))


def test_wrong_names_are_found() -> None:
    assert list(names.unknown_variables("`TUNEFLEET_DATUM`")) == ["TUNEFLEET_DATUM is no variable of Tunefleet's"]
    assert list(names.unknown_routes("`GET /api/v1/task/{id}`, `POST /api/v1/events`")) == [
        "GET /api/v1/task/{id} is no route of ours",
        "POST /api/v1/events is no route of ours",
    ]
    assert list(names.unknown_pages("Open `/ui/task/x`, or http://127.0.0.1:8000/ui/tasks/x?tab=log.")) == [
        "/ui/task/x is no page of the web page"
    ]
    assert list(names.unknown_calls("`client.task.pause(x)`")) == ["client.task.pause: there is no task"]
