"""An upgrade runs pip with one version and nothing else; the interpreter is a fake, a script that notes its words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunefleet.errors import ConflictError, InputError
from tunefleet.jobs import upgrading


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let this environment be ours to change, and return the file with what its interpreter was told."""
    python, told = tmp_path / "python", tmp_path / "told"
    python.write_text(
        f'#!/bin/bash\necho "$*" > {told}\necho done\n[[ "$*" != *9.9* ]] || {{ echo no >&2; exit 1; }}\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(upgrading, "refusal", lambda: None)
    return told


@pytest.mark.parametrize("version", ["", "1; rm -rf /", "--pre", "1.0 evil", 3, ["1.0"]])
def test_what_is_no_version_never_comes_to_pip(ours: Path, version: object) -> None:
    with pytest.raises(InputError, match="is no version"):
        upgrading.upgrade(version, who="worker")
    assert not ours.exists()


def test_an_environment_that_is_not_ours_is_left_alone(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrading, "refusal", lambda: "its Python is managed by the operating system")
    with pytest.raises(ConflictError, match="This agent cannot be upgraded from afar: its Python is managed"):
        upgrading.upgrade("1.2.3", who="agent")
    assert not ours.exists()
