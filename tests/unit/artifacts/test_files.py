"""A file is replaced whole, or stays as it was and leaves nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.artifacts import replacing


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("old")
    with replacing(file) as part:
        part.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        _write_on_a_full_disk(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def _write_on_a_full_disk(file: Path) -> None:
    with replacing(file) as part:
        part.write_text("ne")
        raise OSError(28, "No space left on device")
