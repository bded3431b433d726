"""Deferred imports: packages that open a device or start threads are executed at their first use.

A module of its own: the fork server is `__main__` in its process, and its classes would exist twice in a job.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A module that executes at its first use; the object stays the same, so that earlier imports remain valid."""

    def __getattr__(self, name: str) -> Any:
        # The import system reads `__path__` and similar attributes before they exist.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _execute(self)
        return getattr(self, name)


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # Later, see _execute.
        pass


class LazyFinder(importlib.abc.MetaPathFinder):
    """Finds some packages as usual, but defers their execution."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the usual spec with a lazy loader, or None for any other module."""
        package = sys.modules.get(fullname.partition(".")[0])
        if package is not None and not executed(package):
            _execute(package)
        if fullname not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def executed(module: ModuleType) -> bool:
    """Return whether a module has been executed."""
    return not isinstance(module, _LazyModule)


def _execute(module: ModuleType) -> None:
    module.__class__ = ModuleType
    spec = module.__spec__
    if spec is not None and isinstance(spec.loader, _Loader):
        spec.loader = spec.loader.real
        module.__loader__ = spec.loader
        spec.loader.exec_module(module)
