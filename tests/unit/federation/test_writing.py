"""An adapter's file appears whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tunefleet.federation import write_tensors

VALUES = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.mark.parametrize("fits", [0, 1])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    file = tmp_path / "adapter_model.safetensors"
    write_tensors(file, VALUES)
    write, writes = os.pwrite, []

    def full(fd: int, data: memoryview, at: int) -> int:
        writes.append(at)
        if len(writes) > fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No space left"):
        write_tensors(file, {"a": VALUES["a"] + 1})
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert list(tmp_path.iterdir()) == [file]
    np.testing.assert_array_equal(load_file(file)["a"], VALUES["a"])


def test_what_is_taken_in_pieces_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7], at))
    write_tensors(tmp_path / "adapter", VALUES)
    np.testing.assert_array_equal(load_file(tmp_path / "adapter")["a"], VALUES["a"])
