"""Hooks into an unmodified Python process: what `tunefleet run` puts in front of `PYTHONPATH`.

Python imports `sitecustomize` before a script. The one that `write_site` writes installs an import hook, removes itself
and runs the environment's own. The hook waits for `transformers.trainer`; an interpreter that never imports it has no
further cost. Loaded by file location in an environment that may lack Tunefleet: standard library only, no relative
imports.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

TARGET = "transformers.trainer"
SEEN = "seen"
ATTACHED_TO = "TUNEFLEET_ATTACHED_TO"
"""Names the job folder for a loop that uses `tunefleet.control`, where no Trainer is imported that could be hooked."""
_SITE = '''"""Written by `tunefleet run`: attaches control and journal to training runs."""

import importlib.util as _util
import os as _os
import sys as _sys

_here = _os.path.dirname(_os.path.abspath(__file__))
_sys.path[:] = [_path for _path in _sys.path if _os.path.abspath(_path or ".") != _here]
try:
    _spec = _util.spec_from_file_location("_tunefleet_inject", {inject!r})
    _inject = _util.module_from_spec(_spec)
    _spec.loader.exec_module(_inject)
    _inject.install({folder!r})
except Exception as _error:
    _sys.stderr.write("tunefleet: this training run cannot be controlled: %r\\n" % (_error,))
_own = _sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    _sys.modules["sitecustomize"] = _own
'''


def write_site(folder: Path) -> Path:
    """Write the `sitecustomize` of a job and return the folder that belongs in front of `PYTHONPATH`."""
    site = folder.resolve() / "attach"
    site.mkdir(parents=True, exist_ok=True)
    # A marker of an earlier launch must not count for this one.
    (site / SEEN).unlink(missing_ok=True)
    text = _SITE.format(inject=str(Path(__file__).resolve()), folder=str(folder.resolve()))
    (site / "sitecustomize.py").write_text(text, encoding="utf-8")
    return site


def install(folder: str) -> None:
    """Hook the import of `transformers.trainer` in this process.

    Args:
        folder: The job folder that training runs report to.
    """
    sys.meta_path.insert(0, _Finder(folder))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and run a callback after it is executed."""
        if fullname != TARGET:
            return None
        # The other finders are asked directly: `importlib.util.find_spec` would come back to this one.
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target) if finder is not self else None
            if spec is not None:
                break
        else:
            return None
        self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                _attach(module, self._folder)
            except Exception as error:  # noqa: BLE001 - a failure of ours must not stop the script
                sys.stderr.write(f"tunefleet: this training run cannot be controlled: {error!r}\n")

        # Patched on this loader instance only; other modules are not affected.
        loader.exec_module = exec_module


def _attach(module: ModuleType, folder: str) -> None:
    # The supervisor reads this marker to see that the script trains with a Trainer.
    Path(folder, "attach", SEEN).write_text(f"{os.getpid()}\n", encoding="ascii")
    importlib.import_module(f"{_package()}.autoload.hook").attach_to(module.Trainer, Path(folder))


def _package() -> str:
    """Return the name of this package, imported from its own location."""
    package_dir = Path(__file__).resolve().parent.parent
    installed = importlib.util.find_spec("tunefleet")
    places = [Path(place).resolve() for place in (installed.submodule_search_locations or ())] if installed else []
    if package_dir.parent in places:
        return "tunefleet.trainer_control"  # the script's own callbacks then share these modules
    name = "tunefleet_trainer_control"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, package_dir / "__init__.py", submodule_search_locations=[str(package_dir)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{package_dir} is not a package")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return name
