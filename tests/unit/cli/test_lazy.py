from __future__ import annotations

import signal
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

import pytest

from tunefleet.cli import lazy_group
from tunefleet.cli.lazy_group import Entry, LazyGroup


class Group(LazyGroup):
    table: ClassVar[tuple[Entry, ...]] = (Entry("act", "acting:act", "Act.", "Work"),)


def imported(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let the group's command be one whose import does something."""

    def load(name: str) -> ModuleType:
        meanwhile()
        module = ModuleType(name)
        module.act = lambda: None  # type: ignore[attr-defined]
        return module

    monkeypatch.setattr(lazy_group, "import_module", load)


class Dropping:
    """Drops what is raised when it is removed, as pydantic does where it compiles a pattern."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_a_command_is_imported_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, [Dropping()].clear)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            Group.load("act")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_minds_ctrl_c_goes_on_minding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def own(number: int, frame: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        imported(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
        assert Group.load("act").name == "act"
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
