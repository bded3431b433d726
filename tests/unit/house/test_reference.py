"""The hand-written reference pages say what the code does."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest
import yaml
from fastapi.routing import APIRoute

from tunefleet.api import problem_details, routers
from tunefleet.api.query_params import query_names
from tunefleet.api.routers import API_PREFIX
from tunefleet.api.routers.training_protocol import TRAINING_PREFIX
from tunefleet.lifecycle import federation
from tunefleet.lifecycle import round as round_
from tunefleet.lifecycle.task import FINAL, OUTCOMES, TRANSITIONS, RetryBudget, TaskStatus
from tunefleet.schemas.federated import UpdateState
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.journal import (
    CheckpointRecord,
    EventRecord,
    LaunchRecord,
    MetricRecord,
    PredictionRecord,
    ProgressRecord,
)
from tunefleet.spec import parse_workflow

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs/reference"
FOLDERS = ("", "bench", "docs", "examples", "src", "tests")
PAGES = sorted(
    page
    for folder in FOLDERS
    for page in (ROOT / folder).glob("**/*.md" if folder else "*.md")
    if not {"assets", ".pytest_cache"} & set(page.parts)
)
RECORDS = (LaunchRecord, MetricRecord, ProgressRecord, CheckpointRecord, EventRecord, PredictionRecord)


def _rows(page: str, cells: int) -> list[list[str]]:
    """Return the rows of all tables of a page that have so many cells, without heads."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    bodies = [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if not below.startswith("|---")]
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in bodies if line.startswith("|")]
    return [row for row in split if len(row) == cells and row[0].startswith("`")]


def _words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _under(page: str, head: str) -> list[list[str]]:
    """Return the rows of the one table of a page whose first column has that head."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    _, rule, body = text.partition(f"| {head} |")[2].partition("|---")
    assert rule, f"{page} has no table of {head}"
    lines = [line for line in body.partition("\n\n")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_lifecycle_lists_every_reason_with_its_outcome() -> None:
    written = {_words(row[0])[0]: (_words(row[1])[0], row[2]) for row in _rows("lifecycle.md", 4)}
    assert written == {
        reason.value: (outcome.status.value, outcome.budget.value) for reason, outcome in OUTCOMES.items()
    }
    assert {budget for _, budget in written.values()} == {budget.value for budget in RetryBudget}


def test_lifecycle_lists_every_status_and_change() -> None:
    rows = _rows("lifecycle.md", 2)
    assert [_words(row[0])[0] for row in rows[: len(TaskStatus)]] == [status.value for status in TaskStatus]
    changes = {_words(row[0])[0]: set(_words(row[1])) for row in rows[len(TaskStatus) :]}
    assert changes == {
        status.value: {target.value for target in targets}
        for status, targets in TRANSITIONS.items()
        if status not in FINAL
    }


@pytest.mark.parametrize(
    ("head", "transitions"), [("Federation", federation.TRANSITIONS), ("Round", round_.TRANSITIONS)]
)
def test_lifecycle_lists_what_a_federation_and_its_rounds_may_become(
    head: str, transitions: Mapping[StrEnum, Collection[StrEnum]]
) -> None:
    written = {_words(row[0])[0]: set(_words(row[2])) for row in _under("lifecycle.md", head)}
    assert written == {status.value: {each.value for each in targets} for status, targets in transitions.items()}


def test_lifecycle_lists_why_a_round_changes_and_what_becomes_of_an_update() -> None:
    written = {_words(row[0])[0]: _words(row[1])[0] for row in _under("lifecycle.md", "Round reason")}
    assert written == {reason.value: status.value for reason, status in round_.OUTCOMES.items()}
    assert [_words(row[0])[0] for row in _under("lifecycle.md", "Update")] == list(get_args(UpdateState))


def test_journal_lists_every_record_with_its_fields() -> None:
    written = {_words(row[0])[0]: set(_words(row[1])) for row in _rows("journal.md", 3)}
    assert written == {
        record.model_fields["type"].default: set(record.model_fields) - {"type", "seq", "at", "crc"}
        for record in RECORDS
    }


def test_job_folder_lists_every_file() -> None:
    page = (REFERENCE / "job-folder.md").read_text(encoding="utf-8")
    folder = JobFolder(Path("root"))
    names = {getattr(folder, name).name for name, value in vars(JobFolder).items() if isinstance(value, property)}
    assert {name for name in names if name not in page} == set()


def _made() -> list[tuple[str, APIRoute]]:
    """Every route, with its path below what the server has it under."""
    found = []
    for each in pkgutil.walk_packages(routers.__path__, f"{routers.__name__}."):
        if not each.ispkg:
            router = importlib.import_module(each.name).router
            below = "/api" if each.name.endswith(".federated") else TRAINING_PREFIX
            found += [
                (route.path.removeprefix(API_PREFIX).removeprefix(below), route)
                for route in router.routes
                if isinstance(route, APIRoute)
            ]
    return found


def test_http_api_lists_every_route() -> None:
    written = {_words(row[0])[0] for row in _rows("http-api.md", 2)}
    there = set()
    for where, route in _made():
        if route.include_in_schema:
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", where)
            there |= {f"{method} {path}" for method in route.methods or ()}
    assert written == there


def test_http_api_names_every_filter_of_every_list() -> None:
    paging = {"limit", "cursor", "after", "offset"}
    there = {
        f"GET {where}": set(known) - paging for where, route in _made() if "limit" in (known := query_names(route))
    }
    written = {_words(row[0])[0]: row[1].partition("filter")[2] for row in _rows("http-api.md", 2)}
    assert len(there) == 27
    assert {path: set(_words(written[path])) for path in there} == there


def test_http_api_lists_every_error() -> None:
    written = {_words(row[0])[0]: int(row[1]) for row in _rows("http-api.md", 3)}
    assert written == problem_details.STATUSES


def _documents_in_pages() -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            if "apiVersion" in block and "…" not in block:
                name = f"{page.relative_to(ROOT)}:{number}"
                found.append(pytest.param(block, id=name))
    return found


@pytest.mark.parametrize("block", _documents_in_pages())
def test_a_document_in_a_page_validates(block: str) -> None:
    assert parse_workflow(block, filename="page.yaml").tasks


def test_a_part_of_a_document_in_a_page_is_yaml() -> None:
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if "…" not in block:
                yaml.safe_load(block)


def test_the_workflow_guide_shows_only_blocks_that_exist(repository: Path) -> None:
    guide = (repository / "docs/how-to/workflows.md").read_text(encoding="utf-8")
    block = next(text for text in re.findall(r"```yaml\n(spec:.*?)```", guide, re.DOTALL))
    head = "apiVersion: tunefleet/v1\nkind: LoRASFTTask\nmetadata: { name: guide }\n"
    assert parse_workflow(head + block, filename="guide.yaml").tasks
