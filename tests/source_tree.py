"""Fails a run that has written into the source tree: tests build in copies, and leave a checkout as they found it.

What is there before the run and after it is asked of git. Three things are left out. Caches, which tools keep for the
next run. Files that an editor keeps next to an open file. And, unless the run is strict (in CI), changes of tracked
files: a developer edits them while the tests run. A test that writes a file leaves one that is not tracked.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PACKAGES = "web/node_modules/"
PAGE = "src/tunefleet/api/ui/"
_IGNORED = re.compile(
    r"(^|/)(__pycache__|\.pytest_cache|\.hypothesis|\.(mypy|ruff|import_linter)_cache)/"
    r"|^\.coverage|^htmlcov/"
    r"|~$|\.sw.$|(^|/)(\.#|#)[^/]*$"
)


def state(root: Path, *, strict: bool = False) -> dict[str, str] | None:
    """Return path → what it is like, of all that is not committed; none where git does not know the tree."""
    # `matching` names an ignored folder once, not each file in it. Without optional locks git does not write its index.
    command = ["git", "--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all"]
    try:
        done = subprocess.run([*command, "--ignored=matching", "."], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    kept = {"??", "!!"}
    found = {line[3:]: line[:2] for line in lines if strict or line[:2] in kept}
    return {path: what for path, what in (found | _built(root)).items() if not _IGNORED.search(path)}


def _built(root: Path) -> dict[str, str]:
    """Return what tells one build of an ignored folder from another."""
    packages, page = root / PACKAGES, root / PAGE
    # npm writes its lock last. Packages' caches have names with a dot, and a server with hot reload writes them.
    files = [packages / ".package-lock.json", *(path for path in page.rglob("*") if path.is_file())]
    found = {path.relative_to(root).as_posix(): str(path.stat().st_mtime_ns) for path in files if path.exists()}
    if packages.is_dir():
        found |= {f"{PACKAGES}{path.name}": "" for path in packages.iterdir() if not path.name.startswith(".")}
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the paths that are new, gone or different, a folder instead of what is in it."""
    differing = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    folders = tuple(path for path in differing if path.endswith("/"))
    return [path for path in differing if not any(path != folder and path.startswith(folder) for folder in folders)]


class SourceTree:
    """Compares the tree before a run and after it; with xdist, in the controller.

    Args:
        root: Of the checkout.
        strict: Whether changes of tracked files count, too.
    """

    def __init__(self, root: Path, *, strict: bool) -> None:
        self._root, self._strict = root, strict
        self._before = state(root, strict=strict)
        self._changed: list[str] = []

    def pytest_report_header(self) -> str | None:
        """Say that nothing is compared where git does not know the tree."""
        return "source tree: not a git checkout, so writes into it are not detected" if self._before is None else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Compare once all tests have ended, and let a run fail that was successful."""
        after = state(self._root, strict=self._strict)
        if self._before is None or after is None:
            return
        self._changed = changes(self._before, after)
        if self._changed and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List what has changed."""
        if not self._changed:
            return
        terminalreporter.section("source tree", red=True)
        terminalreporter.line(
            "The run fails because these paths in the source tree changed while it ran. Tests must write into "
            "`tmp_path`, or build in a copy (`copy_tree` in tests/packaging/making.py):"
        )
        for path in self._changed:
            terminalreporter.line(f"  {path}")
