"""The web page's files: which of them a browser may keep, what it may do, and what is said where there are none."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import Running
from tunefleet.api import static_ui


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A page as the build leaves it, of a few bytes."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>the page</title>")
    script = "export const answer = 42;"
    (tmp_path / "assets/index-abc123.js").write_text(script)
    (tmp_path / "assets/index-abc123.js.gz").write_bytes(gzip.compress(script.encode()))
    monkeypatch.setattr(static_ui, "FOLDER", tmp_path)
    yield tmp_path
    static_ui._files_of.cache_clear()


def get(running: Running, path: str, **headers: str) -> httpx.Response:
    return httpx.get(running.url + path, headers=headers)


def test_every_address_below_ui_is_the_page(running: Running, files: Path) -> None:
    for path in ("/ui/", "/ui/tasks", "/ui/tasks/task-0123456789ab?tab=log", "/ui/no/such/page"):
        answer = get(running, path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert "the page" in answer.text
        assert answer.headers["cache-control"] == "no-cache"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert get(running, "/ui").headers["location"] == "/ui/"
    assert get(running, "/").headers["location"] == "/ui/"


def test_hashed_files_are_kept_for_good_and_sent_compressed(running: Running, files: Path) -> None:
    answer = get(running, "/ui/assets/index-abc123.js")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == "export const answer = 42;"
    plain = get(running, "/ui/assets/index-abc123.js", **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == answer.text


def test_a_replaced_file_is_missing_and_not_the_page(running: Running, files: Path) -> None:
    answer = get(running, "/ui/assets/index-older.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-cache")


@pytest.mark.parametrize("path", ["/ui/../page.py", "/ui/%2e%2e/page.py", "/ui/..%2fpage.py", "/ui//etc/passwd"])
def test_no_path_leads_out_of_the_folder(running: Running, files: Path, path: str) -> None:
    (files.parent / "page.py").write_text("secret")
    assert "secret" not in get(running, path).text


def test_a_page_that_was_built_anew_is_served_without_a_restart(running: Running, files: Path) -> None:
    assert "the page" in get(running, "/ui/").text
    (files / "assets/new-1.js").write_text("1")
    (files / "index.html").write_text("another")
    assert "another" in get(running, "/ui/").text
    assert get(running, "/ui/assets/new-1.js").status_code == 200


def test_without_a_page_it_is_said_how_to_make_one(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_ui, "FOLDER", tmp_path / "nothing")
    answer = get(running, "/ui/tasks")
    assert answer.status_code == 404
    assert "make ui" in answer.text
    assert get(running, "/").headers["location"] == "/docs"
