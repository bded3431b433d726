"""A plugin of coverage: nothing is traced while somebody else's package is imported, or does what calls none of ours.

A tracer sees every line that runs, also those it does not count. With it the imports of a training (torch,
transformers, trl) take 23 s of processor time instead of 14, and the tests start many trainings. `pyproject.toml`
names this file's folder, so that each process of an editable install finds it before it starts to measure.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from coverage import CoveragePlugin
from coverage.plugin_support import Plugins

LONG = {
    # What makes validators of our models: most of what importing them takes.
    "pydantic._internal._model_construction": ("complete_model_class",),
    "fastapi.routing": ("APIRoute.__init__",),
    "sqlalchemy.engine.base": ("Connection._execute_context",),
    "sqlalchemy.sql.elements": ("ClauseElement._compile_w_cache",),
    "alembic.ddl.impl": ("DefaultImpl._exec",),
    "torch._tensor": ("Tensor.backward",),
    "_pytest.assertion.rewrite": ("_rewrite_test",),
}
"""Functions of packages that take long and call nothing of ours, by the module that has them."""


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
            _quieten(module)
        finally:
            sys.settrace(tracer)


class _Finder(MetaPathFinder):
    """Finds installed modules as usual; what they import themselves is already untraced."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if sys.gettrace() is None and fullname not in LONG:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or "site-packages" not in (spec.origin or ""):
            return None
        spec.loader = _Untraced(spec.loader)
        return spec


def _quieten(module: ModuleType) -> None:
    """Put the untraced form of a module's long functions in their places."""
    for path in LONG.get(module.__name__, ()):
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, module)
        setattr(owner, name, _untraced(getattr(owner, name)))


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = sys.gettrace()
        if tracer is None:
            return function(*args, **kwargs)
        sys.settrace(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(tracer)

    return call


class _Plugin(CoveragePlugin):
    """Coverage asks for one; all that there is to do is done once, when this file is loaded."""


def coverage_init(registry: Plugins, options: dict[str, str]) -> None:
    """Take part in every import of this process from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # After what is there (a test's own finder comes first), before what looks in folders.
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())
    registry.add_configurer(_Plugin())
