"""What `sweep` accepts, and where its errors point."""

from __future__ import annotations

import pytest

from tests.integration.sweeps.documents import document
from tunefleet.errors import SpecError
from tunefleet.spec import parse_workflow
from tunefleet.spec.options.sweep import SweepSpec

SHAPE = "trials: 4, parameters: {lora.r: [2, 4]}"


@pytest.mark.parametrize(
    ("sweep", "at", "message"),
    [
        (
            "{trials: 2, parameters: {training.learning_rat: [1]}}",
            "parameters.training.learning_rat.0",
            "not a known key",
        ),
        ("{trials: 2, parameters: {lora.r: [8, eight]}}", "parameters.lora.r.1", "must be an integer"),
        ("{trials: 2, parameters: {lora.r: [8, 8]}}", "parameters.lora.r.1", "duplicate"),
        ("{trials: 2, parameters: {lora.r: 8}}", "parameters.lora.r", "must be a list or a range"),
        ("{trials: 2, parameters: {lora.dropout: {min: 0, max: 2}}}", "parameters.lora.dropout.max", "less than"),
        (
            "{trials: 2, parameters: {training.learning_rate: {min: 1, max: 0.1}}}",
            "learning_rate.max",
            "greater than min",
        ),
        ("{trials: 2, parameters: {lora.alpha: {min: 0, max: 9, log: true}}}", "lora.alpha.min", "greater than 0"),
        ("{trials: 2, parameters: {training.warmup_ratio: [0.1], training.warmup_steps: [5]}}", None, None),
        ("{trials: 2, parameters: {taskType: [sft]}}", "parameters.taskType", "cannot vary"),
        ("{trials: 2, parameters: {data.path: [./a.jsonl]}}", "parameters.data.path.0", "local path"),
        ("{sampler: grid, parameters: {lora.r: {min: 2, max: 9}}}", "parameters.lora.r", "needs count"),
        ("{trials: 2, parameters: {lora.r: {min: 2, max: 9, count: 2}}}", "lora.r.count", "no effect"),
        ("{parameters: {lora.r: [2]}}", "trials", "is required"),
        (f"{{{SHAPE}, pruner: {{name: asha, startup_trials: 2}}}}", "pruner.startup_trials", "no effect"),
        (f"{{{SHAPE}, objective: grad_norm}}", "objective.direction", "is required"),
        (f"{{{SHAPE}, sampler: bayes}}", "sampler", "grid"),
        (f"{{{SHAPE}, pruner: hyperband}}", None, None),
    ],
)
def test_an_error_has_its_place(sweep: str, at: str | None, message: str | None) -> None:
    text = document(sweep)
    if at is None or message is None:
        assert parse_workflow(text).sweep is not None
        return
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    (fault,) = caught.value.faults
    assert fault.path.endswith(at), fault
    assert message in fault.message
    assert text.splitlines()[fault.line - 1].startswith("sweep:"), "the line of the user's file"


@pytest.mark.parametrize(
    ("old", "new", "sweep", "message"),
    [
        ('    eval: {split: "test[:16]"}\n', "", SHAPE, "not measured"),
        (
            "eval_strategy: steps\n    eval_steps: 2",
            'eval_strategy: "no"',
            f"{SHAPE}, pruner: asha",
            "needs evaluations",
        ),
        ("max_steps: 8", "num_train_epochs: 1", f"{SHAPE}, pruner: hyperband", "needs max_evaluations"),
    ],
)
def test_the_objective_must_be_measured(old: str, new: str, sweep: str, message: str) -> None:
    text = document(f"{{{sweep}}}")
    assert old in text
    if not new:
        text = text.replace("eval_strategy: steps\n    eval_steps: 2", 'eval_strategy: "no"')
    with pytest.raises(SpecError, match=message):
        parse_workflow(text.replace(old, new))


def test_a_grid_counts_its_combinations() -> None:
    ranges = {
        "a": {"min": 1e-4, "max": 1e-2, "log": True, "count": 3},
        "b": {"min": 1, "max": 8, "count": 4},
        "c": [0, 1],
    }
    sweep = SweepSpec.model_validate({"sampler": "grid", "parameters": ranges})
    assert sweep.parameters["a"].grid() == [1e-4, 1e-3, 1e-2]
    assert sweep.parameters["b"].grid() == [1, 3, 6, 8]
    assert (sweep.combinations, sweep.total) == (24, 24)
    assert SweepSpec.model_validate_json(sweep.model_dump_json()) == sweep
