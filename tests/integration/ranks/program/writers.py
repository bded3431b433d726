"""A real training that notes which files each rank opens for writing, and which folders it makes or renames."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tunefleet.workloads import training

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main(folder: Path) -> None:
    """Train as the job says."""
    touched: set[str] = set()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if mode else (flags or 0) & _WRITING
        else:
            path, writes = next(iter(arguments), None), event in {"os.mkdir", "os.rename", "shutil.rmtree"}
        if writes and isinstance(path, str | Path) and str(path).startswith(f"{folder}/"):
            touched.add(str(path).removeprefix(f"{folder}/"))

    sys.addaudithook(watch)
    training.main(folder)
    (folder.parent / f"touched-{os.environ['RANK']}.json").write_text(json.dumps(sorted(touched)))
