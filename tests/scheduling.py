"""Which test worker runs a file: one worker runs all files that import the training libraries into its own process.

To import them takes 16 to 20 CPU seconds and 900 MB. With `--dist loadfile` each worker gets some of these files, and
each would pay.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

# In a fixture or a test: at the top of a file they would be imported by all workers, to collect it.
_IMPORTS: Final = re.compile(r"^ +(?:from|import) (?:peft|torch|transformers|trl)\b", re.MULTILINE)
_FOLDERS: Final = ("tests/integration/merge/", "tests/integration/programs/", "tests/unit/programs/")
"""Their conftests have fixtures that import them."""


class Scheduling(LoadFileScheduling):
    """Distributes files, those with the training libraries as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid), Path(self.config.rootpath))


@functools.cache
def scope_of(file: str, root: Path) -> str:
    """Return the name of the files that a test worker gets together with a file."""
    together = file.startswith(_FOLDERS) or _IMPORTS.search((root / file).read_text(encoding="utf-8"))
    return "training libraries" if together else file


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replace the scheduler of `--dist loadfile`."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
