"""Pages are followed word by word, in an empty home and an empty folder, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.documents import scenes
from tests.documents.blocks import ROOT, blocks, pages
from tests.documents.likeness import difference
from tests.documents.reader import Reader, Scene
from tests.integration.postgres.process import PostgresProcess
from tunefleet import Client
from tunefleet.errors import ConflictError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@contextmanager
def _reading(folder: Path, port: int, settings: Path | None = None) -> Iterator[Reader]:
    reader = Reader(folder, port, settings)
    try:
        yield reader
    finally:
        reader.end()


def _leave_nothing(fleet: Reader) -> None:
    """End what a page has left running: the next one finds a free worker."""
    key = (fleet.home / ".tunefleet/data/keys/admin.key").read_text().strip()
    with Client(fleet.url, key) as client:
        for status in ("pending", "queued", "dispatched", "running", "paused"):
            for task in client.tasks.iterate(status=status):
                with suppress(ConflictError):  # it has just ended
                    client.tasks.cancel(task.id)


@contextmanager
def _beside(fleet: Reader, folder: Path) -> Iterator[Reader]:
    try:
        with _reading(folder, fleet.port, fleet.home / ".tunefleet") as reader:
            yield reader
    finally:
        _leave_nothing(fleet)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Reader]:
    """Somebody who has typed `tunefleet up`."""
    with _reading(tmp_path_factory.mktemp("fleet"), free_port()) as reader:
        reader.type("tunefleet up", Scene(), "before")
        yield reader


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in scenes.CUT else pytest.mark.proof) for page in scenes.FLEET]
)
def test_a_page_can_be_followed_beside_a_server(page: str, fleet: Reader, tmp_path: Path) -> None:
    with _beside(fleet, tmp_path) as reader:
        reader.follow(ROOT / page, scenes.FLEET[page])


@pytest.mark.story
@pytest.mark.torch
@pytest.mark.parametrize("page", scenes.ALONE)
def test_a_page_can_be_followed_from_nothing(page: str, tmp_path: Path, free_port: Callable[[], int]) -> None:
    with _reading(tmp_path, free_port()) as reader:
        reader.follow(ROOT / page, scenes.ALONE[page])


@pytest.mark.torch
@pytest.mark.parametrize("page", scenes.LONG)
def test_a_page_that_takes_long_beside_a_server(page: str, fleet: Reader, tmp_path: Path) -> None:
    with _beside(fleet, tmp_path) as reader:
        reader.follow(ROOT / page, scenes.LONG[page])


@pytest.mark.torch
@pytest.mark.parametrize("page", scenes.LONG_ALONE)
def test_a_page_that_takes_long_from_nothing(page: str, tmp_path: Path, free_port: Callable[[], int]) -> None:
    with _reading(tmp_path, free_port()) as reader:
        reader.follow(ROOT / page, scenes.LONG_ALONE[page])


def test_the_page_of_postgresql(tmp_path: Path, free_port: Callable[[], int], postgres: PostgresProcess) -> None:
    url = postgres.create()
    with _reading(tmp_path, free_port()) as reader:
        example = "postgresql://tunefleet:PASSWORD@db.example.org:5432/tunefleet"
        reader.follow(ROOT / "docs/how-to/postgresql.md", Scene(values={example: url}))
    postgres.drop(url)


def test_every_page_with_a_command_that_is_not_left_out_is_followed() -> None:
    followed = {*scenes.FLEET, *scenes.ALONE, *scenes.LONG, *scenes.LONG_ALONE, *scenes.WITH_SERVICES}
    with_commands = {
        page.relative_to(ROOT).as_posix()
        for page in pages()
        if any(block.run or block.note("run") for block in blocks(page))
    }
    assert with_commands - followed - scenes.ELSEWHERE.keys() == set()
    assert followed - with_commands == set(), "these have nothing to run"
    assert followed & scenes.ELSEWHERE.keys() == set()
    assert [test for test in scenes.ELSEWHERE.values() if not (ROOT / test).is_file()] == []


def test_what_a_command_no_longer_says_is_found() -> None:
    shown = ("Submitted a as wf-0123 with 2 tasks.", "", "STAGE   TASK          STATUS", "one     task-12ab34   queued")
    said = ["STAGE  TASK  STATUS".replace("TASK", "TASK  "), "more", "one task-99 queued"]
    assert difference(shown, ["Submitted a as wf-ffff with 13 tasks.", *said]) is None
    assert difference(shown, ["Submitted a as wf-ffff.", *said]) == shown[0]
    assert difference(shown, ["Submitted a as wf-ffff with 13 tasks.", *said[:-1]]) == shown[3]
