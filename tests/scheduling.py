"""Which test worker runs a file: those that need something large run in one worker.

To import the training libraries takes 16 to 20 CPU seconds and 900 MB. With `--dist loadfile` each worker gets some of
the files that need them, and each would pay. The same holds for an S3 server.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SHARED: Final = {
    # In a fixture or a test: at the top of a file they would be imported by all workers, to collect it.
    "training libraries": re.compile(r"^ +(?:from|import) (?:peft|torch|transformers|trl)\b", re.MULTILINE),
    "S3 server": re.compile(r"\bs3_server\b"),
}
"""What files of one test worker share, and how a file shows that it needs it."""
LIBRARIES_BY_CONFTEST: Final = ("tests/integration/merge/", "tests/integration/workloads/", "tests/unit/workloads/")
"""Folders whose conftests have fixtures that import the training libraries."""


class Scheduling(LoadFileScheduling):
    """Distributes files, those with the training libraries as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid), Path(self.config.rootpath))


@functools.cache
def scope_of(file: str, root: Path) -> str:
    """Return the name of the files that a test worker gets together with a file."""
    if file.startswith(LIBRARIES_BY_CONFTEST):
        return "training libraries"
    text = (root / file).read_text(encoding="utf-8")
    return next((name for name, needs in SHARED.items() if needs.search(text)), file)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replace the scheduler of `--dist loadfile`."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
