"""Nothing draws bars into the log of an evaluation."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_nobody_draws_a_bar_not_even_who_insists(capsys: pytest.CaptureFixture[str]) -> None:
    from tunefleet.workloads.evaluation.launch import without_bars

    tqdm = pytest.importorskip("tqdm")
    auto = pytest.importorskip("tqdm.auto")
    with without_bars():
        assert list(tqdm.tqdm(range(3), "Running requests", disable=False)) == [0, 1, 2]
        with auto.tqdm(total=3, desc="Generating", disable=False) as bar:
            bar.update(3)
    assert capsys.readouterr().err == ""
    assert list(tqdm.tqdm(range(3), "Running requests")) == [0, 1, 2]
    assert "Running requests: 100%" in capsys.readouterr().err
