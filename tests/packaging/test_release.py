"""A release: its files are checked against tag and changelog, and a dry run of the workflow publishes nothing."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import release
from scripts.check_docs import make_targets

CHANGELOG = "# Changelog\n\n## Unreleased\n\n- next\n\n## [0.1.0] - 2026-01-01\n\n- first\n\n## 0.0.9\n\n- before\n"
PUBLISHING = {"pypi", "docs", "notes"}


def _files(folder: Path, version: str = "0.1.0", *, page: bool = True, sources: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"tunefleet-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(release.PAGE if page else "tunefleet/__init__.py", "")
    with tarfile.open(folder / f"tunefleet-{sources or version}.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo(f"tunefleet-{version}/web/package.json"), io.BytesIO())
    return folder


def _workflow(repository: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((repository / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    return read


def test_a_complete_release_has_no_fault_and_its_notes_are_its_section(tmp_path: Path) -> None:
    folder = _files(tmp_path / "dist")
    assert list(release.faults(folder, None, "v0.1.0", CHANGELOG)) == []
    assert list(release.faults(folder, None, None, "")) == [], "a dry run has no tag"
    assert release.notes(CHANGELOG, "0.1.0") == "- first"
    assert release.notes(CHANGELOG, "0.2.0") is None


@pytest.mark.parametrize(
    ("files", "tag", "fault"),
    [
        ({"version": "0.1.1"}, "v0.1.0", "The tag is v0.1.0, but the files have version 0.1.1."),
        ({"page": False}, "v0.1.0", "lacks the web page"),
        ({"sources": "0.0.9"}, "v0.1.0", "different versions: 0.0.9, 0.1.0"),
        ({"version": "0.2.0"}, "v0.2.0", "CHANGELOG.md has no section for 0.2.0."),
        ({}, "first", "The tag first is not a version"),
    ],
)
def test_an_incomplete_release_is_refused(files: dict[str, Any], tag: str, fault: str, tmp_path: Path) -> None:
    found = list(release.faults(_files(tmp_path / "dist", **files), None, tag, CHANGELOG))
    assert any(fault in each for each in found), found


def test_two_wheels_or_no_documentation_are_refused(tmp_path: Path) -> None:
    folder = _files(tmp_path / "dist")
    assert "run `make site`" in "".join(release.faults(folder, tmp_path / "site", None, CHANGELOG))
    _files(folder, "0.1.1")
    assert "2 wheels" in "".join(release.faults(folder, None, None, CHANGELOG))


def test_the_workflow_is_valid_and_runs_what_exists(repository: Path) -> None:
    path = repository / ".github/workflows/release.yml"
    checker = Path(sys.executable).with_name("check-jsonschema")
    checked = subprocess.run(
        [str(checker), "--builtin-schema", "vendor.github-workflows", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    targets = set(re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8")))
    assert {"release-check", "sbom"} <= targets <= make_targets(repository)
    jobs = _workflow(repository)["jobs"]
    matrix = jobs["images"]["strategy"]["matrix"]["include"]
    for image in matrix:
        text = (repository / image["file"]).read_text(encoding="utf-8")
        assert not image["target"] or re.search(rf"^FROM \S+ AS {image['target']}$", text, re.MULTILINE)


def test_a_dry_run_publishes_nothing_and_no_token_is_stored(repository: Path) -> None:
    jobs = _workflow(repository)["jobs"]
    assert jobs.keys() == {"build", "images"} | PUBLISHING
    assert {jobs[name]["if"] for name in PUBLISHING} == {"github.event_name == 'push'"}
    steps = {step.get("uses", "").partition("@")[0]: step for step in jobs["images"]["steps"]}
    assert steps["docker/login-action"]["if"] == "github.event_name == 'push'"
    assert steps["docker/build-push-action"]["with"]["push"] == "${{ github.event_name == 'push' }}"
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    text = (repository / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"GITHUB_TOKEN"}


def test_the_page_on_installing_names_each_extra(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (repository / "docs/how-to/install.md").read_text(encoding="utf-8")
    assert [extra for extra in project["optional-dependencies"] if f"`{extra}`" not in page] == []


def test_no_guide_starts_a_module_of_ours(repository: Path) -> None:
    """The handler for RunPod has no command: its container is not ours."""
    folders = ("how-to", "tutorial")
    pages = [repository / "README.md", *(p for each in folders for p in (repository / "docs" / each).glob("*.md"))]
    named = {page.name for page in pages if "python -m tunefleet" in page.read_text(encoding="utf-8")}
    assert named <= {"merge-on-runpod.md"}
