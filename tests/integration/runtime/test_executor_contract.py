"""A kind whose program does not do what it declares fails the executor contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.testing import JobContract

DEAF = """
import json, sys, time
def main(folder):
    time.sleep(1)
    (folder / "responses.json").write_text('{"ok": true}')
"""


def test_a_kind_must_heed_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(JobExecutor):
        kind = "deaf"
        program = "deaf:main"
        supported_commands = BETWEEN_ITEMS

        def outputs(self, folder: JobFolder) -> list[Output]:
            return []

    class Claimed(JobContract):
        executor = Deaf
        spec: ClassVar[dict[str, Any]] = {}
        timeout_s = 60

    (tmp_path / "deaf.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match="before it took save_checkpoint, pause: give it more work"):
        Claimed().test_heeds_what_it_says(tmp_path)
