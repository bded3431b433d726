"""A sweep as an Optuna study: rebuilt from its stored trials at each step, as after a kill of the server."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from tests.libraries import required
from tunefleet.db.repositories.sweeps import TrialRow
from tunefleet.lifecycle.sweep import TrialState
from tunefleet.orchestrator.sweeps import study
from tunefleet.orchestrator.sweeps.study import Suggestion
from tunefleet.spec.options.sweep import SweepSpec

RANGE = {"min": 1e-5, "max": 1e-1, "log": True}


@pytest.fixture(autouse=True)
def _optuna() -> None:
    required("optuna")


def spec(**options: Any) -> SweepSpec:
    return SweepSpec.model_validate({"parameters": {"lr": RANGE, "r": [2, 4, [8, 8]]}, "trials": 30, **options})


def row(made: Suggestion, state: str = "running", value: float | None = None, evaluations: Any = ()) -> TrialRow:
    return TrialRow(
        1, made.number, state, "task-1", orjson.dumps(made.parameters).decode(), orjson.dumps(made.attributes).decode(),
        orjson.dumps(list(evaluations)).decode(), value, None, 0.0, None, 0.0, None,
    )  # fmt: skip


def test_a_grid_has_each_combination_once_whatever_becomes_of_the_trials() -> None:
    wanted = spec(
        sampler="grid", trials=None, parameters={"a": [1, 2, True], "b": {"min": 0.0, "max": 1.0, "count": 2}}
    )
    rows: list[TrialRow] = []
    for state in ("completed", "failed", "running", "pruned", "cancelled", "running"):
        made = study.suggest(wanted, rows)
        rows.append(row(made, state, 1.0 if state == "completed" else None))
    found = [orjson.loads(each.parameters) for each in rows]
    assert sorted(map(repr, found)) == sorted(repr({"a": a, "b": b}) for a in (1, 2, True) for b in (0.0, 1.0))


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_values_are_reproducible_in_range_and_never_the_same_twice(sampler: str) -> None:
    def run() -> list[dict[str, Any]]:
        rows: list[TrialRow] = []
        for _ in range(14):
            made = study.suggest(spec(sampler=sampler, seed=3), rows)
            rows.append(row(made, "completed", abs(math.log10(made.parameters["lr"]) + 3)))
        return [orjson.loads(each.parameters) for each in rows]

    first = run()
    assert first == run(), "the same seed and results give the same trials"
    assert len({each["lr"] for each in first}) == 14
    assert all(1e-5 <= each["lr"] <= 1e-1 and each["r"] in [2, 4, [8, 8]] for each in first)


def test_tpe_learns_from_results_that_random_ignores() -> None:
    def distance(sampler: str) -> float:
        rows: list[TrialRow] = []
        for _ in range(40):
            made = study.suggest(spec(sampler=sampler, trials=40), rows)
            rows.append(row(made, "completed", abs(math.log10(made.parameters["lr"]) + 3)))
        return sum(each.value or 0.0 for each in rows[20:]) / 20

    assert distance("tpe") < 0.6 * distance("random")


def test_asha_stops_what_falls_behind_and_keeps_its_rungs_across_restarts() -> None:
    wanted = spec(pruner={"name": "asha", "reduction_factor": 2})
    rows = [row(study.suggest(wanted, []))]
    for _ in range(3):
        rows.append(row(study.suggest(wanted, rows)))
    pruned = []
    for number, loss in enumerate((1.0, 3.0, 0.5, math.nan)):
        prune, attributes = study.judge(wanted, rows, number, [loss], None)
        pruned.append(prune)
        value = None if math.isnan(loss) else loss
        state = TrialState.PRUNED if prune else TrialState.RUNNING
        rows[number] = rows[number]._replace(
            state=state.value,
            attributes=orjson.dumps(attributes).decode(),
            evaluations=orjson.dumps([[2, value]]).decode(),
        )
    assert pruned == [False, True, False, True]
    assert "completed_rung_0" in orjson.loads(rows[1].attributes), "what was stopped still counts for the others"


def test_importance_needs_a_few_complete_trials_and_finds_the_parameter_that_matters() -> None:
    rows: list[TrialRow] = []
    for _ in range(24):
        made = study.suggest(spec(sampler="random"), rows)
        rows.append(row(made, "completed", abs(math.log10(made.parameters["lr"]) + 3)))
    assert study.importances(spec(), rows[:3]) == {}
    shares = study.importances(spec(), rows)
    assert shares["lr"] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
