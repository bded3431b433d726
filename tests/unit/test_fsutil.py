from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
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


def test_many_writers_of_one_file_leave_one_of_their_contents(tmp_path: Path) -> None:
    contents = [f"{number}" * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(fsutil.write_private, tmp_path / "marker", each) for each in contents * 20]:
            done.result()
    assert (tmp_path / "marker").read_text() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["marker"]
