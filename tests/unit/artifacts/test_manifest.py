"""File lists: what is in an artifact, under which names, and its digest."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.artifacts import check_files, check_path, manifest_digest, scan, scan_size, target_path
from tunefleet.errors import ArtifactError, NotFoundError
from tunefleet.schemas.api import FileEntry

A, B = "a" * 64, "b" * 64


def entry(path: str, digest: str = A, size_bytes: int = 1) -> FileEntry:
    return FileEntry(path=path, digest=digest, size_bytes=size_bytes)


def test_the_digest_is_over_canonical_json() -> None:
    text = f'[["a.txt","{B}",2],["b/c","{A}",1]]'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert manifest_digest([entry("b/c"), entry("a.txt", B, 2)]) == expected
    assert manifest_digest([entry("a.txt", B, 2), entry("b/c")]) == expected


def test_scan_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "x").write_bytes(b"12")
    (folder / "a.bin").write_bytes(b"345")
    (folder / "link").symlink_to("a.bin")
    seen: list[int] = []
    found = scan(folder, progress=seen.append)
    assert [file.entry.path for file in found] == ["a.bin", "link", "sub/x"]
    assert found[0].entry.digest == found[1].entry.digest == hashlib.sha256(b"345").hexdigest()
    assert sum(seen) == scan_size(folder) == 8
    assert [file.entry.path for file in scan(folder, skip=lambda name: name.startswith("sub/"))] == ["a.bin", "link"]


def test_scan_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"{}\n")
    (tmp_path / "alias.jsonl").symlink_to(file)
    assert [found.entry.path for found in scan(tmp_path / "alias.jsonl")] == ["rows.jsonl"]
    assert scan_size(file) == 3


def test_what_scan_refuses(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        scan(tmp_path / "nothing")
    with pytest.raises(NotFoundError):
        scan_size(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ArtifactError, match="no files"):
        scan(empty)
    for name, target, message in (
        ("out", "/etc/passwd", "out of the folder"),
        ("up", "../empty", "out of the folder"),
        ("loop", ".", "link to a folder"),
        ("gone", "nowhere", "Cannot read"),
    ):
        folder = tmp_path / f"with-{name}"
        folder.mkdir()
        (folder / name).symlink_to(target)
        with pytest.raises(ArtifactError, match=message):
            scan(folder)


def test_scan_refuses_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="not a regular file"):
        scan(tmp_path)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"1")

    def grow(_: int) -> None:
        if file.stat().st_size < 3:
            file.write_bytes(b"123")

    with pytest.raises(ArtifactError, match="changed while it was read"):
        scan(file, progress=grow)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/../b", "..", "./a", "a//b", "a/", "C:/x", "a\\b", "a\nb", "a\0b", "x" * 256, "d/" * 600 + "x"],
)
def test_unsafe_paths(path: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="file name"):
        check_path(path)
    with pytest.raises(ArtifactError):
        target_path(tmp_path, path)
    with pytest.raises(ArtifactError):
        check_files([entry(path)])


@given(st.text(max_size=40))
def test_no_path_leaves_its_folder(path: str) -> None:
    root = Path("/some/folder")
    try:
        target = target_path(root, path)
    except ArtifactError:
        return
    assert Path(os.path.normpath(target)).is_relative_to(root)
    assert target != root


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "list is empty"),
        ([entry("a"), entry("a")], "twice"),
        ([entry("a"), entry("a/b")], "as a file and as a folder"),
        ([entry("a", "zz")], "digest"),
        ([entry("a", A, -1)], "size"),
    ],
)
def test_bad_file_lists(files: list[FileEntry], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        check_files(files)


def test_a_good_file_list(tmp_path: Path) -> None:
    check_files([entry("a/b"), entry("a/c"), entry("d")])
    assert target_path(tmp_path, "a/b") == tmp_path / "a" / "b"
