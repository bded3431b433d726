"""The page is built by the Node.js that comes as a build requirement: none has to be on the PATH."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hatch_build


@pytest.mark.slow
def test_the_page_is_built_where_no_node_is_on_the_path(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], None]
) -> None:
    web = repository / "web"
    if not (web / "node_modules/vite").is_dir():
        missing("the packages of the web page (make ui)")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    built = tmp_path / "page"
    hatch_build.build(web, built)
    scripts = re.findall(r'src="/ui/(assets/[^"]+\.js)"', (built / "index.html").read_text(encoding="utf-8"))
    assert scripts
    for name in scripts:
        assert (built / name).stat().st_size > (built / f"{name}.gz").stat().st_size > 0
