"""A plugin of coverage: nothing is traced while somebody else's package is imported.

A tracer sees every line that runs, also those it does not count. With it the imports of a training (torch,
transformers, trl) take 23 s of processor time instead of 14, and the tests start many trainings. `pyproject.toml`
names this file's folder, so that each process of an editable install finds it before it starts to measure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from coverage import CoveragePlugin
from coverage.plugin_support import Plugins


class _Untraced(Loader):
    """The real loader, but while it executes the module, this thread is not traced."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # Nobody else shall find the stand-in.
        module.__loader__ = self.real
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            self.real.exec_module(module)
        finally:
            sys.settrace(tracer)


class _Finder(MetaPathFinder):
    """Finds installed modules as usual; what they import themselves is already untraced."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if sys.gettrace() is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or "site-packages" not in (spec.origin or ""):
            return None
        spec.loader = _Untraced(spec.loader)
        return spec


class _Plugin(CoveragePlugin):
    """Coverage asks for one; all that there is to do is done once, when this file is loaded."""


def coverage_init(registry: Plugins, options: dict[str, str]) -> None:
    """Take part in every import of this process from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # After what is there (a test's own finder comes first), before what looks in folders.
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())
    registry.add_configurer(_Plugin())
