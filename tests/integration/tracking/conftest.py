"""The store of the services' tests, and a folder without anybody's trackers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.orchestrator.conftest import fresh_data, lab

__all__ = ["alone", "fresh_data", "lab"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own; what trackers keep lies in it."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path
