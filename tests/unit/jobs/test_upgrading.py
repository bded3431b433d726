"""An upgrade runs pip with one version and nothing else; the interpreter is a fake, a script that notes its words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunefleet.errors import ConflictError, InputError, MachineError
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


@pytest.mark.parametrize(("version", "package"), [("1.2.3", "tunefleet==1.2.3"), (None, "tunefleet")])
def test_pip_is_told_the_version_or_to_take_the_newest(ours: Path, version: str | None, package: str) -> None:
    assert upgrading.upgrade(version, who="agent") == "done\n"
    assert ours.read_text() == f"-m pip install --upgrade --no-input {package}\n"


@pytest.mark.parametrize("version", ["", "1; rm -rf /", "--pre", "1.0 evil", 3, ["1.0"]])
def test_what_is_no_version_never_comes_to_pip(ours: Path, version: object) -> None:
    with pytest.raises(InputError, match="is no version"):
        upgrading.upgrade(version, who="worker")
    assert not ours.exists()


@pytest.mark.usefixtures("ours")
def test_the_last_words_of_pip_are_the_error() -> None:
    with pytest.raises(MachineError, match="pip failed: no"):
        upgrading.upgrade("9.9", who="worker")


def test_an_environment_that_is_not_ours_is_left_alone(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrading, "refusal", lambda: "its Python is managed by the operating system")
    with pytest.raises(ConflictError, match="This agent cannot be upgraded from afar: its Python is managed"):
        upgrading.upgrade("1.2.3", who="agent")
    assert not ours.exists()
