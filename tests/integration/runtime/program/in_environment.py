"""A program that says which interpreter runs it and what it sees, then trains as the fake trainer does."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fake_trainer

from tunefleet import trainer_control


def main(folder: Path) -> None:
    """Say it, then take steps and obey commands."""
    session = trainer_control.open_session(folder)
    found: dict[str, str | None] = {"prefix": sys.prefix, "path": os.environ["PATH"], "python": shutil.which("python")}
    for name in ("layered", "pydantic"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    part = folder / ".seen"
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(folder / "seen.json")
    fake_trainer.train(session, steps=int(session.job["spec"].get("steps", 500)))
