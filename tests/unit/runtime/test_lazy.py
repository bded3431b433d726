"""Packages whose execution is put off until they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefleet.runtime.warm.lazy_imports import LazyFinder, executed

NAME = "tunefleet_test_package"


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LazyFinder]:
    package = tmp_path / NAME
    package.mkdir()
    (package / "__init__.py").write_text("from . import inner\nANSWER = 42\n__version__ = '1'\n")
    (package / "inner.py").write_text(f"import {NAME}\nTHERE = hasattr({NAME}, 'inner')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = LazyFinder([NAME])
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield finder
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_importing_again_and_looking_for_it_do_not_execute_it(finder: LazyFinder) -> None:
    module = importlib.import_module(NAME)
    assert importlib.import_module(NAME) is module
    assert importlib.util.find_spec(NAME) is not None
    assert module.__spec__ is not None
    assert module.__path__
    assert not executed(module)
    assert f"{NAME}.inner" not in sys.modules


def test_the_first_use_executes_it_and_it_stays_the_same_object(finder: LazyFinder) -> None:
    module = importlib.import_module(NAME)
    assert module.ANSWER == 42
    assert executed(module)
    assert sys.modules[NAME] is module
    assert module.__version__ == "1"
    with pytest.raises(AttributeError):
        _ = module.nothing


@pytest.mark.parametrize("emptied", [False, True])
def test_a_module_inside_it_comes_after_it(finder: LazyFinder, emptied: bool) -> None:
    module = importlib.import_module(NAME)
    if emptied:
        finder.names = frozenset()
    importlib.import_module(f"{NAME}.inner")
    assert executed(module)


def test_an_emptied_finder_puts_nothing_more_off(finder: LazyFinder) -> None:
    finder.names = frozenset()
    assert executed(importlib.import_module(NAME))


def test_a_package_that_is_not_installed_is_not_found(finder: LazyFinder) -> None:
    finder.names = frozenset({"tunefleet_no_such_package"})
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tunefleet_no_such_package")
