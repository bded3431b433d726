"""Imports that are put off until somebody needs them: for packages that touch a device when they are executed.

`importlib.util.LazyLoader` cannot be used: its module executes at the first look at any attribute, and the second
`import` of a module looks at `__spec__`. Here only a name that the package itself must define executes it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any


class _Unexecuted(ModuleType):
    """A module that executes at the first use; it stays the same object, so whoever imported it has the real one."""

    def __getattr__(self, name: str) -> Any:
        # The import system itself looks at `__path__` and its like before they are there.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _execute(self)
        return getattr(self, name)


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Unexecuted(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # Later, see _execute.
        pass


class LazyFinder(importlib.abc.MetaPathFinder):
    """Finds some packages as usual, but puts their execution off."""

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
    """Tell whether a module has run its code."""
    return not isinstance(module, _Unexecuted)


def _execute(module: ModuleType) -> None:
    module.__class__ = ModuleType
    spec = module.__spec__
    if spec is not None and isinstance(spec.loader, _Loader):
        spec.loader = spec.loader.real
        module.__loader__ = spec.loader
        spec.loader.exec_module(module)
