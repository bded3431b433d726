"""In a real trainer, scoring labelled positions alone trains as scoring all of them does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.libraries import required

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that grows with every batch of which labelled positions alone are scored."""
    from tunefleet.workloads.training import label_scores

    found: list[object] = []
    made = label_scores._output

    def output(*args: Any) -> Any:
        found.append(args)
        return made(*args)

    monkeypatch.setattr(label_scores, "_output", output)
    return found


def assert_trained_alike(ours: Any, plain: Any, steps: int) -> None:
    """Compare two runs: their losses, and each weight that was trained."""
    assert len(ours.series("loss")) == steps
    assert ours.series("loss") == pytest.approx(plain.series("loss"), abs=1e-5)
    found, wanted = ours.weights(), plain.weights()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (found[name] - value).abs().max() < 2e-4, name


@pytest.mark.parametrize(
    "training",
    [{"gradient_accumulation_steps": 3}, {"packing": True, "batch_size": 1, "gradient_accumulation_steps": 2}],
)
def test_losses_and_weights_are_those_of_all_positions(
    training: dict[str, Any], train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = counted(monkeypatch)
    ours = train({"training": training})
    count = len(scored)
    assert scored, "labelled positions alone were scored"
    replaced: list[object] = []
    monkeypatch.setattr("tunefleet.workloads.training.trainer.score_labels_only", replaced.append)
    plain = train({"training": training})
    assert replaced
    assert len(scored) == count, "and all of them in the run to compare with"
    assert_trained_alike(ours, plain, 4)
