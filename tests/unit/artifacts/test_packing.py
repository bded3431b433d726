"""Archives that are packed: the same bytes for the same folder, compressed as the worker is told."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import pytest

from tunefleet.artifacts import Packing, is_packed, pack, unpack
from tunefleet.errors import MachineError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "final_model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}" * 5000)
    (folder / "sub" / "weights.bin").write_bytes(b"0123456789" * 20_000)
    return folder


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


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


def test_another_program_compresses_if_it_is_there(tmp_path: Path, folder: Path) -> None:
    noted = tmp_path / "arguments"
    pigz = program(tmp_path / "pigz", f'#!/bin/sh\necho "$@" > {noted}\nexec gzip -nc\n')
    archive = tmp_path / "x.tar.gz"
    pack(folder, archive, Packing(level=7, pigz=pigz, threads=3))
    assert noted.read_text().split() == ["--no-name", "-7", "--processes", "3"]
    with tarfile.open(archive) as opened:
        assert sorted(opened.getnames()) == ["final_model/config.json", "final_model/sub/weights.bin"]
    assert Packing(pigz="no-such-program-here").command is None
    pack(folder, archive, Packing(pigz="no-such-program-here"))
    assert is_packed(archive)


def test_a_program_that_fails_is_named_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    pigz = program(tmp_path / "pigz", "#!/bin/sh\necho no memory >&2\nexit 3\n")
    with pytest.raises(MachineError, match="no memory"):
        pack(folder, tmp_path / "x.tar.gz", Packing(pigz=pigz))
    assert not list(tmp_path.glob("*x.tar.gz*"))


def test_what_is_packed_is_told_by_its_content(tmp_path: Path, folder: Path) -> None:
    plain = tmp_path / "plain.tar.gz"
    plain.write_bytes(b"not packed")
    assert not is_packed(plain)
    with tarfile.open(tmp_path / "tar", "w") as opened:
        opened.add(folder, "x")
    assert is_packed(tmp_path / "tar")
