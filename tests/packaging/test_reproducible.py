"""The same commit gives the same files, whoever builds it, where and when; its source distribution the same wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.packaging.making import EPOCH, VERSION, build, copy_tree, one, run

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
REGISTRY = "https://registry.npmjs.org/react"
OTHERS = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "LC_ALL": "C.UTF-8"}


@pytest.fixture(params=[False, pytest.param(True)], ids=["without-page", "with-page"])
def page(request: pytest.FixtureRequest, missing: Callable[[str], None]) -> bool:
    """Whether the page is built, too: its packages come from an npm registry."""
    if request.param:
        try:
            urllib.request.urlopen(REGISTRY, timeout=20).close()
        except (urllib.error.URLError, TimeoutError):
            missing("the npm registry")
    return bool(request.param)


def unpacked(archive: Path, into: Path) -> Path:
    """Unpack a source distribution; return its folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return one(into, "tunefleet-*")


def same(one_file: Path, other: Path) -> bool:
    """Whether two files have the same bytes, and the same name."""
    digests = {sha256(path.read_bytes()).hexdigest() for path in (one_file, other)}
    return one_file.name == other.name and len(digests) == 1


def test_two_builds_and_one_of_the_source_distribution_are_equal(repository: Path, tmp_path: Path, page: bool) -> None:
    here = copy_tree(repository, tmp_path / "here")
    there = copy_tree(repository, tmp_path / "deep/er/there", umask=0o077)
    for path in there.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
    build(here, tmp_path / "a", "sdist", "wheel", page=page, **{VERSION: "0.9.1"})
    build(there, tmp_path / "b", "sdist", page=page, umask=0o077, **{VERSION: "0.9.1"}, **OTHERS)
    assert same(tmp_path / "a/tunefleet-0.9.1.tar.gz", tmp_path / "b/tunefleet-0.9.1.tar.gz")
    wheel = tmp_path / "a/tunefleet-0.9.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.startswith("tunefleet/api/ui/assets/") for name in archive.namelist()) is page
        assert max(info.date_time for info in archive.infolist()) <= (2023, 11, 15, 0, 0, 0)

    source = unpacked(tmp_path / "a/tunefleet-0.9.1.tar.gz", tmp_path / "source")
    said = build(source, tmp_path / "c", "wheel", page=page, umask=0o077, **OTHERS)
    assert "unknown" not in said
    assert same(wheel, tmp_path / "c" / wheel.name)


def test_a_newer_commit_is_told_from_an_older_one(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree")
    build(tree, tmp_path / "a", "wheel", **{VERSION: "0.9.1"})
    build(tree, tmp_path / "b", "wheel", **{VERSION: "0.9.1", "SOURCE_DATE_EPOCH": str(int(EPOCH) + 86400)})
    assert not same(one(tmp_path / "a", "*.whl"), one(tmp_path / "b", "*.whl"))


def test_a_tree_without_git_is_built_and_says_how_a_version_is_named(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree")
    said = build(tree, tmp_path / "built", "wheel")
    assert (tmp_path / "built/tunefleet-0.1.dev0-py3-none-any.whl").is_file()
    assert "The version is unknown, 0.1.dev0 is taken" in said
    assert f"{VERSION}=1.2.3" in said


def test_the_version_is_that_of_the_newest_tag(repository: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copyfile(repository / name, tmp_path / name)

    def git(*words: str) -> None:
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def version() -> str:
        return run(sys.executable, "-m", "hatchling", "version", cwd=tmp_path).strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "First")
    assert re.fullmatch(r"0\.1\.dev1\+g[0-9a-f]+", version()), "a clone without tags is built, too"
    git("tag", "v0.3.0")
    assert version() == "0.3.0"
    git("commit", "--quiet", "--allow-empty", "--message", "Second")
    assert re.fullmatch(r"0\.3\.1\.dev1\+g[0-9a-f]+", version())
