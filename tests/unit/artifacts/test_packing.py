"""Archives that are packed: the same bytes for the same folder, compressed as the worker is told."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tunefleet.artifacts import Packing, is_packed, pack, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "final_model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}" * 5000)
    (folder / "sub" / "weights.bin").write_bytes(b"0123456789" * 20_000)
    return folder


def test_equal_folders_give_equal_bytes_and_levels_differ(tmp_path: Path, folder: Path) -> None:
    sizes = []
    for level in (0, None, 9):
        one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
        pack(folder, one, Packing(level=level))
        pack(folder, two, Packing(level=level))
        assert one.read_bytes() == two.read_bytes()
        assert is_packed(one)
        sizes.append(one.stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert unpack(tmp_path / "one.tar.gz", tmp_path / "out").name == "final_model"
    assert (tmp_path / "out" / "final_model" / "sub" / "weights.bin").stat().st_size == 200_000


def test_what_is_packed_is_told_by_its_content(tmp_path: Path, folder: Path) -> None:
    plain = tmp_path / "plain.tar.gz"
    plain.write_bytes(b"not packed")
    assert not is_packed(plain)
    with tarfile.open(tmp_path / "tar", "w") as opened:
        opened.add(folder, "x")
    assert is_packed(tmp_path / "tar")
