"""The documents as a site: every page is in its menu, every link leads somewhere, pictures and examples are there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.packaging.making import run

pytestmark = pytest.mark.timeout(600)
LINKED = re.compile(r'(?:href|src)="([^"#?]+)')


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    said = run(*command, cwd=repository, NO_MKDOCS_2_WARNING="1")
    assert said.strip() == ""
    return folder


@pytest.mark.proof
def test_no_link_of_the_site_leads_nowhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 80
    lost = {
        (str(page.relative_to(site)), link)
        for page in pages
        for link in LINKED.findall(page.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:|//", link) and not (page.parent / link).exists()
    }
    assert lost == set()


@pytest.mark.proof
def test_what_lies_beside_the_documents_comes_along(site: Path) -> None:
    assert (site / "tree/examples/workflows/index.html").is_file()
    assert (site / "tree/examples/workflows/pipeline.yaml").is_file()
    assert (site / "img/task-desktop-light.png").is_file()


@pytest.mark.proof
def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:)?//(?!squidfunk)')
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page.name


@pytest.mark.proof
def test_the_search_finds_pages_of_each_part(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    parts = {entry["location"].split("/")[0] for entry in index["docs"]}
    assert parts >= {"tutorial", "how-to", "reference", "explanation", "decisions"}


def test_the_menu_has_each_page_once(repository: Path) -> None:
    menu = yaml.safe_load((repository / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert [next(iter(part)) for part in menu] == [
        "Home", "Get started", "Train", "Evaluate and chat", "Export and serve", "Operate", "Scale out", "Federate",
        "Campaigns", "Reference", "Decisions",
    ]  # fmt: skip
    listed = [
        page for part in menu for pages in part.values() for page in ([pages] if isinstance(pages, str) else pages)
    ]
    docs = repository / "docs"
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == there
