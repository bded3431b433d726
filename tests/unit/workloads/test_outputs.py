from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global outputs
    pytest.importorskip("torch")

    from tunefleet.workloads.common import outputs


pytestmark = pytest.mark.torch


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "final_lora"

    def half(folder: Path) -> None:
        (folder / "a").write_text("a")
        assert not target.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outputs.write_folder(target, half)
    assert not target.exists()
    outputs.write_folder(target, lambda folder: (folder / "b").mkdir() or (folder / "b" / "c").touch())
    assert [path.relative_to(target).as_posix() for path in target.rglob("*")] == ["b", "b/c"]
    outputs.write_folder(target, lambda folder: (folder / "d").touch())
    assert [path.name for path in target.iterdir()] == ["d"]
    assert [path.name for path in tmp_path.iterdir()] == ["final_lora"]


def test_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        outputs.write_file(tmp_path / "responses.json", content)
        assert (tmp_path / "responses.json").read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1
