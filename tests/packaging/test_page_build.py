"""The page is built by the Node.js that comes as a build requirement: none has to be on the PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build
from scripts import web
from tests.packaging.making import link_packages

NO_REGISTRY = {"registry": "http://127.0.0.1:9", "fetch_retries": "0"}


@pytest.mark.proof
def test_the_page_is_built_where_no_node_is_on_the_path(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web_packages: Path
) -> None:
    for name in ("web", "examples", "docs"):
        shutil.copytree(repository / name, tmp_path / name, ignore=shutil.ignore_patterns("node_modules", "dist"))
    link_packages(web_packages, tmp_path / "web/node_modules")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    built = tmp_path / "page"
    hatch_build.build(tmp_path / "web", built)
    assert list((built / "assets").glob("pause-and-resume-*.js")), "the documentation is a part of it"
    scripts = re.findall(r'src="/ui/(assets/[^"]+\.js)"', (built / "index.html").read_text(encoding="utf-8"))
    assert scripts
    for name in scripts:
        assert (built / name).stat().st_size > (built / f"{name}.gz").stat().st_size > 0


@pytest.mark.proof
def test_packages_stay_where_new_ones_cannot_be_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(repository / "web" / name, tmp_path)
    (tmp_path / "node_modules/react").mkdir(parents=True)
    for name, value in {**NO_REGISTRY, "cache": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(f"npm_config_{name}", value)
    monkeypatch.setattr(web, "WEB", tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        web.install()
    assert (tmp_path / "node_modules/react").is_dir()
    assert not (tmp_path / ".packages").exists()
