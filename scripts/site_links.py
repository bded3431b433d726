"""MkDocs' hook: what documents link to outside `docs/` comes into the site, too, below `tree/` as it lies here."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
TREE = "tree/"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s:#]+)(#[^)\s]*)?\)")


def _in_tree(uri: str) -> str:
    """Return where a page of the site lies in the repository."""
    return uri.removeprefix(TREE) if uri.startswith(TREE) else f"docs/{uri}"


def _in_site(path: str) -> str:
    """Return where a file of the repository lies in the site; of a folder, its README."""
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{TREE}{path}"


def _target(uri: str, link: str) -> str:
    """Return the path in the repository that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(_in_tree(uri)), link))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring what is linked to, and what that links to."""
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for _, link, _ in LINK.findall(page.content_string):
            uri = _in_site(_target(page.src_uri, link))
            source = ROOT / _in_tree(uri)
            if files.get_file_from_path(uri) is None and uri.startswith(TREE) and source.is_file():
                file = File.generated(config, uri, abs_src_path=str(source.resolve()))
                files.append(file)
                waiting += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links that leave `docs/`; one to a folder without a README becomes its name."""

    def turned(found: re.Match[str]) -> str:
        before, link, part = found.groups()
        uri = _in_site(_target(page.file.src_uri, link))
        if files.get_file_from_path(uri) is None:
            return before.strip("[(]") if (ROOT / _in_tree(uri)).is_dir() else found.group()
        return f"{before}{posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{part or ''})"

    return LINK.sub(turned, markdown)
