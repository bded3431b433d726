"""Each test of this folder runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.postgres.process import PostgresProcess
from tunefleet.db import Database

Opener = Callable[..., Database]


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a new database of this test's own is to be."""
    if request.param == "sqlite":
        return tmp_path / "test.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database without tables is to be."""
    if request.param == "sqlite":
        return tmp_path / "empty.db"
    url: str = request.getfixturevalue("postgres_empty")
    return url


@pytest.fixture
def postgres_empty(postgres: PostgresProcess) -> Iterator[str]:
    """The URL of a PostgreSQL database without tables."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def another(target: Path | str) -> Iterator[Opener]:
    """Open the test's database, as often as it likes."""
    made: list[Database] = []

    def open_(**options: object) -> Database:
        made.append(Database.open(target, synchronous="NORMAL", **options))  # type: ignore[arg-type]
        return made[-1]

    yield open_
    for each in made:
        each.close()


@pytest.fixture
def woken() -> list[frozenset[str]]:
    return []


@pytest.fixture
def database(another: Opener, woken: list[frozenset[str]]) -> Database:
    return another(on_wake=woken.append)
