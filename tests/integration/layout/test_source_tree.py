"""A test run that writes into the source tree fails and lists the paths; edits and caches do not count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof
CONFTEST = """
from pathlib import Path
from tests.source_tree import SourceTree
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SourceTree(Path(__file__).parent, strict={strict}))
"""
TEST = """
import os, shutil
from pathlib import Path
os.chdir(Path(__file__).parent)
def test_it():
    {body}
"""
HARMLESS = """
    Path("tracked.txt").write_text("edited")
    for name in (".pytest_cache/a", "src/__pycache__/a", ".ruff_cache/a", ".coverage.1", ".tracked.txt.swp", "a.py~"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("web/node_modules/.vite").mkdir()
"""
WRITING = """
    for name in ("dist/a.whl", "dist/b.whl", "notes/new.txt", "src/tunefleet/api/ui/assets/a.js"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small checkout with a built page and its packages."""
    for name in ("tracked.txt", "web/node_modules/.package-lock.json", "web/node_modules/react/a.js"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "src/tunefleet/api/ui").mkdir(parents=True)
    (tmp_path / "src/tunefleet/api/ui/index.html").touch()
    (tmp_path / ".gitignore").write_text("dist/\nnode_modules/\nsrc/tunefleet/api/ui/\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def ran(tree: Path, repository: Path, body: str, *options: str, strict: bool = False) -> tuple[int, str]:
    """Run one test in a committed tree; return the exit status and the output."""
    (tree / "conftest.py").write_text(CONFTEST.format(strict=strict))
    (tree / "test_it.py").write_text(TEST.format(body=body.strip()))
    (tree / "pytest.ini").touch()
    if (tree / ".git").exists():
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "add", "."], cwd=tree, check=True)
        subprocess.run(["git", *who, "commit", "--quiet", "--message", "All"], cwd=tree, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"], cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    return done.returncode, done.stdout


def named(said: str) -> list[str]:
    """Return the paths that a run lists."""
    section = said.partition(" source tree ")[2]
    return [line.strip() for line in section.splitlines() if line.startswith("  ")]


def test_edits_caches_and_files_of_an_editor_do_not_count(tree: Path, repository: Path) -> None:
    status, said = ran(tree, repository, HARMLESS)
    assert (status, named(said)) == (pytest.ExitCode.OK, [])


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n1")], ids=["one process", "xdist"])
def test_new_files_fail_a_run_that_passed(tree: Path, repository: Path, options: tuple[str, ...]) -> None:
    status, said = ran(tree, repository, WRITING, *options)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert named(said) == ["dist/", "notes/new.txt", "src/tunefleet/api/ui/assets/a.js"]


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ('shutil.rmtree("web/node_modules")', ["web/node_modules/"]),
        ('shutil.rmtree("web/node_modules/react")', ["web/node_modules/react"]),
        ('os.utime("web/node_modules/.package-lock.json", (1, 1))', ["web/node_modules/.package-lock.json"]),
    ],
    ids=["all", "one", "reinstalled"],
)
def test_packages_that_are_gone_or_installed_again_fail_it(
    tree: Path, repository: Path, body: str, paths: list[str]
) -> None:
    status, said = ran(tree, repository, body)
    assert (status, named(said)) == (pytest.ExitCode.TESTS_FAILED, paths)


def test_in_ci_an_edit_fails_it_too(tree: Path, repository: Path) -> None:
    status, said = ran(tree, repository, 'Path("tracked.txt").write_text("edited")', strict=True)
    assert (status, named(said)) == (pytest.ExitCode.TESTS_FAILED, ["tracked.txt"])


def test_without_git_nothing_is_compared_and_the_run_says_so(tree: Path, repository: Path) -> None:
    (tree / ".git").rename(tree / "no-git")
    status, said = ran(tree, repository, WRITING)
    assert status == pytest.ExitCode.OK
    assert "not a git checkout, so writes into it are not detected" in said
