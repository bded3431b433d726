"""A second worker on a results folder is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunefleet.worker.state import StateFolder


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "results")
    folder.open()
    return folder


def test_a_second_worker_on_the_folder_is_told_who_has_it(state: StateFolder) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tunefleet.errors import MachineError\n"
        "from tunefleet.worker.state import StateFolder\n"
        "try: StateFolder(Path(sys.argv[1])).open()\n"
        "except MachineError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(state.results_dir)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert f"Another worker (pid {os.getpid()}) already uses {state.results_dir}." in said
    assert "--results-dir" in said
