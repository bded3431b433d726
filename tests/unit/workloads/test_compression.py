"""A checkpoint is compressed without ever being less than whole."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunefleet.trainer_control.checkpoints.manifest import find_newest, finish_checkpoint, invalid_reason


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global CompressionCallback, compress, checkpoint_compression, files_kept, decompressed
    pytest.importorskip("torch")

    from tunefleet.workloads.training import checkpoint_compression
    from tunefleet.workloads.training.checkpoint_compression import (
        CompressionCallback,
        compress,
        decompressed,
        files_kept,
    )


pytestmark = pytest.mark.torch
LARGE, SMALL = b"weights " * 40_000, b'{"step": 5}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "checkpoint-5"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(LARGE)
    (folder / "trainer_state.json").write_bytes(SMALL)
    finish_checkpoint(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def test_large_files_are_compressed_and_come_back_as_they_were(checkpoint: Path, tmp_path: Path) -> None:
    assert decompressed(checkpoint, tmp_path / "w") == checkpoint
    assert compress(checkpoint) > 300_000
    assert {path.name for path in checkpoint.iterdir()} == {
        "model.safetensors.zst",
        "trainer_state.json",
        "manifest.json",
    }
    assert invalid_reason(checkpoint) is None
    assert contents(decompressed(checkpoint, tmp_path / "w")) == {
        "model.safetensors": LARGE,
        "trainer_state.json": SMALL,
    }
    assert compress(checkpoint) == 0, "a second time there is nothing to do"


@pytest.mark.parametrize("moment", ["write_json", "sync_folder"])
def test_killed_before_or_after_the_manifest_it_is_whole(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_compression, moment, die)
        with pytest.raises(KeyboardInterrupt):
            compress(checkpoint)
    assert (checkpoint / "model.safetensors").read_bytes() == LARGE
    found = find_newest(checkpoint.parent)
    assert found is not None
    assert contents(decompressed(found.path, tmp_path / "w"))["model.safetensors"] == LARGE


def test_a_copy_that_does_not_read_back_is_not_used(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkpoint / "model.safetensors").write_bytes(LARGE[::-1])  # what is on the disk is not what the manifest says
    with pytest.raises(OSError, match="does not match its digest"):
        compress(checkpoint)
    assert {path.name for path in checkpoint.iterdir()} == {"model.safetensors", "trainer_state.json", "manifest.json"}


def test_no_file_goes_while_somebody_reads(checkpoint: Path) -> None:
    thread = threading.Thread(target=compress, args=(checkpoint,))
    with files_kept():
        thread.start()
        thread.join(0.5)
        assert (checkpoint / "model.safetensors").read_bytes() == LARGE
    thread.join(10)
    assert not (checkpoint / "model.safetensors").exists()


def test_a_checkpoint_whose_manifest_comes_late_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_compression, "_MANIFEST_TIMEOUT_S", 0.0)
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(LARGE)
    callback = CompressionCallback(lambda _: False)
    callback.on_save(
        SimpleNamespace(output_dir=str(tmp_path)),  # type: ignore[arg-type]
        SimpleNamespace(global_step=1, is_world_process_zero=True),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    deadline = time.monotonic() + 10
    while "no manifest" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (folder / "model.safetensors").exists()


def test_a_checkpoint_that_is_deleted_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    with pytest.raises(OSError, match="no manifest"):
        compress(folder)
    shutil.rmtree(folder)
