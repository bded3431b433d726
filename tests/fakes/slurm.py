"""Slurm's commands, each a script that notes how it was called and answers what a test wants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tunefleet.integrations.clusters.slurm import Slurm

STAND_IN = """#!/bin/bash
here=$(dirname "$0")
name=$(basename "$0")
{ printf '%s\\n' "$name" "$@"; echo ---; } >> "$here/said"
env > "$here/$name.env"
cat > "$here/$name.in"
[ -e "$here/$name.err" ] && { cat "$here/$name.err" >&2; exit 1; }
[ -e "$here/$name.out" ] && cat "$here/$name.out"
exit 0
"""


class StandIns:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "scancel", "srun", "scontrol"):
            (folder / name).write_text(STAND_IN)
            (folder / name).chmod(0o755)

    def slurm(self, **more: Any) -> Slurm:
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "SECRET_OF_THE_SERVER": "s3cret"}
        return Slurm(self.folder.parent / "nodes", environment=environment, **more)

    def answers(self, name: str, text: str, *, error: bool = False) -> None:
        (self.folder / f"{name}.{'err' if error else 'out'}").write_text(text)

    def said(self) -> list[list[str]]:
        calls = (self.folder / "said").read_text().split("---\n")
        return [call.splitlines() for call in calls if call]

    def given(self, name: str) -> tuple[str, dict[str, str]]:
        """Return what a command got as input, and its variables."""
        lines = (self.folder / f"{name}.env").read_text().splitlines()
        return (self.folder / f"{name}.in").read_text(), dict(line.split("=", 1) for line in lines if "=" in line)
