"""Copies of the tree, builds of them, and environments that something is installed into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from scripts.check_docs import tracked

EPOCH = "1700000000"
VERSION = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TUNEFLEET"
PATIENCE_S = 600


def copy_tree(repository: Path, into: Path, *, umask: int = 0o022) -> Path:
    """Copy what is tracked, as somebody with that umask has it; without git, and with times of now."""
    for path in tracked(repository):
        target = into / path.relative_to(repository)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        shutil.copyfile(path, target)
        target.chmod((0o777 if os.access(path, os.X_OK) else 0o666) & ~umask)
    return into


def link_packages(packages: Path, into: Path) -> None:
    """Make a `node_modules` of links to the installed packages.

    It is a folder of its own, not a link to the installed one: what a build or npm writes into it, or removes from it,
    stays in the copy.
    """
    into.mkdir()
    for package in packages.glob("[!.]*"):
        (into / package.name).symlink_to(package)


def run(*command: str | Path, cwd: Path | None = None, umask: int = -1, **environment: str) -> str:
    """Run a command without what a developer's environment adds to it; return what it printed, errors too.

    Raises:
        AssertionError: It ended with another code than 0.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUNEFLEET_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**kept, **environment}, umask=umask, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


def build(root: Path, into: Path, *targets: str, page: bool = False, umask: int = 0o022, **environment: str) -> str:
    """Build `wheel` or `sdist` of a tree, with the backend that is installed here; return what was said."""
    chosen = {} if page else {"TUNEFLEET_WITHOUT_PAGE": "1"}
    options = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *options, "-d", into]
    return run(*command, cwd=root, umask=umask, **{"SOURCE_DATE_EPOCH": EPOCH, **chosen, **environment})


def one(folder: Path, pattern: str) -> Path:
    """Return the only file of that kind."""
    (found,) = folder.glob(pattern)
    return found


def environment_with(wheel: Path, folder: Path) -> Path:
    """Make an environment with a wheel and what it requires, without an extra; return its `bin`.

    The libraries are those that are installed here, and no others of them are to be found.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = HeaderParser().parsestr(archive.read(name).decode())
    link_required([Requirement(line) for line in told.get_all("Requires-Dist", [])], site)
    return folder / "bin"


def link_required(wanted: list[Requirement], into: Path) -> None:
    """Link what requirements without a chosen extra lead to, from the environment of this process."""
    seen: set[tuple[str, str]] = set()
    waiting = [(each, "") for each in wanted]
    while waiting:
        each, extra = waiting.pop()
        if each.marker is not None and not each.marker.evaluate({"extra": extra}):
            continue
        found = distribution(each.name)
        # Of a package its own needs, and those of the extras of it that are asked for.
        for chosen in {"", *each.extras} - {chosen for name, chosen in seen if name == found.name}:
            seen.add((found.name, chosen))
            waiting += [(Requirement(line), chosen) for line in found.requires or []]
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in {"..", "__pycache__"}}:
            if not (into / top).exists():
                (into / top).symlink_to(found.locate_file(top))
