"""Jobs of a test are found in its own folder, and end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.trainer_control.control import discovery


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the endpoints."""
    folder = tmp_path / "jobs"
    monkeypatch.setenv("TUNEFLEET_JOBS_DIR", str(folder))
    return folder


@pytest.fixture
def script(tmp_path: Path, jobs: Path) -> Iterator[Callable[..., Any]]:
    """Make a script; several of one test share the output folder, and each is a process of its own."""
    tiny = pytest.importorskip("tests.integration.trainer_control.tiny")
    made: list[Any] = []

    def make(*extra: Any, output: str = "out", **options: Any) -> Any:
        for before in made:
            before.end()
        # A lock goes with its process.
        discovery._release()
        made.append(tiny.Script(tmp_path / output, *extra, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()
    discovery._release()
