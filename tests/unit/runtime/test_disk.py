"""The forecast of what a training writes, held against what is free."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tunefleet.errors import MachineError
from tunefleet.runtime.disk_check import Forecast, require_space

GIB = 1 << 30


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize(
    ("kept", "saves", "peak"),
    [(2, 10, 3 * 5 + 1), (2, 1, 5 + 1), (None, 10, 10 * 5 + 1), (1, 10, 2 * 5 + 1), (3, 0, 1)],
)
def test_the_peak_is_one_checkpoint_more_than_are_kept_and_the_final_model(
    kept: int | None, saves: int, peak: int
) -> None:
    forecast = Forecast(weights_bytes=GIB, trainable_parameters=GIB // 2, checkpoints=kept, saves=saves)
    assert forecast.peak_bytes == peak * GIB


def test_a_training_that_would_fill_the_disk_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(3 * GIB))
    folder = tmp_path / "not" / "there" / "yet"
    forecast = Forecast(weights_bytes=GIB, trainable_parameters=0, checkpoints=2, saves=9)
    with pytest.raises(
        MachineError, match=r"needs 4\.06 GiB.*1\.00 GiB per checkpoint, 2 kept.*3\.00 GiB are free"
    ) as caught:
        require_space(folder, forecast)
    assert "save_total_limit" in str(caught.value.hint)
    require_space(folder, Forecast(weights_bytes=GIB, trainable_parameters=0, checkpoints=1, saves=1))
