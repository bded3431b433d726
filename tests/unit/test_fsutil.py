from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet import fsutil


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "final_lora"

    def half(folder: Path) -> None:
        (folder / "a").write_text("a")
        assert not target.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fsutil.write_folder(target, half)
    assert not target.exists()
    fsutil.write_folder(target, lambda folder: (folder / "b").mkdir() or (folder / "b" / "c").touch())
    assert [path.relative_to(target).as_posix() for path in target.rglob("*")] == ["b", "b/c"]
    fsutil.write_folder(target, lambda folder: (folder / "d").touch())
    assert [path.name for path in target.iterdir()] == ["d"]
    assert [path.name for path in tmp_path.iterdir()] == ["final_lora"]


def test_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        fsutil.write_file(tmp_path / "responses.json", content)
        assert (tmp_path / "responses.json").read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1
