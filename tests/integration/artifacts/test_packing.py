"""A program other than Python's gzip compresses an archive where it is installed."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import pytest

from tunefleet.artifacts import Packing, is_packed, pack
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
