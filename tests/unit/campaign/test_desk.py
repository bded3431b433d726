"""What a failed task of ours means to the step that has asked for it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.campaign.service.desk import spec
from tunefleet.campaign import task_client
from tunefleet.campaign.contract import Base, Candidate, CycleFailed
from tunefleet.campaign.service.cycle_state import ModelVersion
from tunefleet.campaign.steps import evaluate
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.submit import base_of
from tunefleet.campaign.task_client import TaskFailed, failure_of, model_of
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.cycle import Stage


@pytest.mark.parametrize(
    ("reason", "kind", "transient"),
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
    reason: str, kind: type[Exception], transient: bool | None
) -> None:
    task: Any = SimpleNamespace(id="task-1", status="failed", reason=reason, error="torn")
    error = failure_of(task, "candidate-0")
    assert type(error) is kind
    assert getattr(error, "transient", None) is transient
    assert "candidate-0: task task-1 has failed: torn" in str(error)


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
    assert evaluate._leave_out(failure_of(task, "candidate-0"), tries) is left_out


def _task(status: str, why: str | None = None) -> Any:
    return SimpleNamespace(id="task-1", status=status, why=why, progress=None, kind="data", reason=None)


FULL = "waiting for a worker: task-1 is queued (worker-1 is full); checked every 0 s until it changes"
GONE = "waiting for the server, which does not respond: Refused.; checked every 0 s until it changes"


@pytest.mark.parametrize(
    ("last_s", "looks", "said"),
    [
        (0.0, [_task("queued", "worker-1 is full.")] * 3, [FULL]),
        (0.0, [_task("queued", "worker-1 is full."), _task("running")] * 2, [FULL, FULL]),
        (0.0, [UnreachableError("Refused.")] * 2 + [_task("queued", "worker-1 is full.")], [GONE, FULL]),
        (0.0, [_task("running")], []),
        (60.0, [_task("queued")] * 3, []),
    ],
)
async def test_a_task_that_waits_for_long_is_logged_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, last_s: float, looks: list[Any], said: list[str]
) -> None:
    monkeypatch.setattr(task_client, "FIRST_POLL_S", 0.0)
    monkeypatch.setattr(task_client, "LAST_POLL_S", last_s)
    left, logged = [*looks, _task("completed")], []

    async def create(*given: Any) -> Any:
        return SimpleNamespace(id="wf-1", name="rows", status="running", tasks=(_task("queued"),))

    async def get(id_: str) -> Any:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(id=id_, name="rows", status="running" if left else "completed", tasks=(found,))

    async def log(text: str) -> None:
        logged.append(text)

    async def nothing(*given: Any) -> Any:
        return _task("completed")

    state = SimpleNamespace(step="data", tries=0, key=lambda *given: "key")
    context: Any = SimpleNamespace(
        client=SimpleNamespace(
            workflows=SimpleNamespace(create=create, get=get), tasks=SimpleNamespace(get=nothing)
        ),
        repository=SimpleNamespace(report=nothing), state=state, log=log,
    )  # fmt: skip
    await task_client.CampaignTaskClient(context).run("rows", {})
    assert logged == ["rows: task-1", *said]
