"""What a failed task of ours means to the step that has asked for it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.services.campaigns.desk import spec
from tunefleet.campaign.contract import Base, Candidate, CycleFailed
from tunefleet.campaign.desk import TaskFailed, failure_of, model_of
from tunefleet.campaign.steps import evaluate
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.submit import base_of
from tunefleet.lifecycle.model import Stage
from tunefleet.services.campaigns.state import ModelVersion


@pytest.mark.parametrize(
    ("reason", "kind", "passing"),
    [
        ("bad_input", CycleFailed, None),
        ("diverged", CycleFailed, None),
        ("bug", TaskFailed, False),
        ("out_of_memory", TaskFailed, False),
        ("network", TaskFailed, True),
        ("worker_lost", TaskFailed, True),
    ],
)
def test_a_paid_model_is_not_lost_because_a_worker_was(
    reason: str, kind: type[Exception], passing: bool | None
) -> None:
    task: Any = SimpleNamespace(id="task-1", status="failed", reason=reason, error="torn")
    error = failure_of(task, "candidate-0")
    assert type(error) is kind
    assert getattr(error, "passing", None) is passing
    assert "candidate-0: the task task-1 has failed: torn" in str(error)


def version_of(base: Base, merge: dict[str, Any]) -> ModelVersion:
    lineage = {"base": asdict(base), "merge": merge}
    return ModelVersion(
        "daily", 1, Stage.PROMOTED, "model", "camp-1", 0, {"url": "hf://me/daily"}, lineage, {}, None, 0.0, 0.0
    )


def test_code_is_run_of_the_campaigns_own_model_and_never_of_one_that_somebody_else_has_trained() -> None:
    given = spec(model={"trust_remote_code": True})

    def trusts(base: Base) -> bool:
        return bool(model_of(given, base)["model"]["source"].get("trust_remote_code"))

    own = Base(given.model_repo)
    whole = of_candidate(given, own, Candidate("org/theirs", "model", "one", revision="c1"))[0]
    assert "trust_remote_code" not in whole["model"]["source"]
    adapted = of_candidate(given, own, Candidate("org/theirs", "adapter", "one"))[0]
    assert adapted["model"]["source"]["trust_remote_code"]
    assert trusts(own)
    context: Any = SimpleNamespace()
    ours = base_of(context, version_of(own, {"url": "hf://me/merged"}))
    theirs = base_of(context, version_of(own, {"url": "hf://org/theirs", "taken": "org/theirs"}))
    upon_theirs = base_of(context, version_of(theirs, {"url": "hf://me/merged-again"}))
    assert [trusts(each) for each in (ours, theirs, upon_theirs)] == [True, False, False]
    assert not model_of(spec(), own)["model"]["source"].get("trust_remote_code")


@pytest.mark.parametrize(
    ("reason", "tries", "left_out"),
    [("bug", 0, True), ("out_of_memory", 0, False), ("timeout", 1, False), ("stalled", 2, True), ("network", 9, False)],
)
def test_a_candidate_is_not_left_out_because_a_worker_had_too_much_to_do(
    reason: str, tries: int, left_out: bool
) -> None:
    task: Any = SimpleNamespace(id="task-1", status="failed", reason=reason, error="torn")
    assert evaluate._is_none(failure_of(task, "candidate-0"), tries) is left_out
