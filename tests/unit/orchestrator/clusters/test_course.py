"""What is done next about one job of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.orchestrator.clusters.policy import LEAVE_S, VANISHED_S, JobWorkers, Step, next_step

NOW = 1000.0
PATIENCE_S = 600.0
JOB = ClusterJobRow("tunefleet-task_a-1", 1, "task_a", "slurm", 1, 2, "waiting", "key_a", NOW - 900, "17")
ASKED = JOB._replace(state="submitting", job_id=None)
JUST_ASKED = ASKED._replace(made_at=NOW - VANISHED_S + 1)
RUNS = JOB._replace(state="running", running_at=NOW - 10)
RAN_LONG = RUNS._replace(running_at=NOW - PATIENCE_S - 1)
LEAVES = RUNS._replace(state="leaving", leaving_at=NOW - 10)
LATE = LEAVES._replace(leaving_at=NOW - LEAVE_S - 1)
WAITING = ClusterJobState("17", "waiting", "pending (Priority)")
RUNNING = ClusterJobState("17", "running")
OVER = ClusterJobState("17", "ended", "failed (NonZeroExitCode)")
HERE = JobWorkers(("a", "b"))
HALF = JobWorkers(("a",), complete=False)


def test_nothing_is_concluded_from_a_cluster_that_may_not_know_the_job_yet() -> None:
    for job in (JUST_ASKED, JUST_ASKED._replace(state="waiting")):
        assert step(job, seen=None) == Step("none")
    for job in (ASKED, JOB, RUNS, LEAVES):
        assert step(job, seen=None) == Step("end", "the cluster does not know it")


@pytest.mark.parametrize("status", ["queued", "dispatched", "running"])
def test_a_task_that_needs_its_nodes_waits_and_runs(status: str) -> None:
    for job in (ASKED, JOB, RUNS):
        assert step(job, status, WAITING) == Step("waits", "pending (Priority)")
        assert step(job._replace(running_at=None), status, RUNNING) == Step("runs")
    assert step(RUNS, status, RUNNING) == Step("none")


@pytest.mark.parametrize("status", ["pending", "paused", "completed", "failed", "cancelled", None])
def test_a_task_that_needs_no_nodes_gives_them_back(status: str | None) -> None:
    assert step(RUNS, status, RUNNING, HERE) == Step("leave")
    assert step(RUNS, status, RUNNING, JobWorkers()) == Step("cancel"), "nobody is there who could leave"
    assert step(JOB, status, WAITING) == Step("cancel")
    assert step(ASKED, status, WAITING) == Step("cancel")
    assert step(RUNS, status, OVER) == Step("end", "failed (NonZeroExitCode)")


def test_who_leaves_has_a_minute() -> None:
    for status in ("cancelled", "queued"):  # one that is resumed meanwhile gets other nodes
        assert step(LEAVES, status, RUNNING, HERE) == Step("none")
        assert step(LATE, status, RUNNING, HERE) == Step("cancel")
        assert step(LEAVES, status, WAITING) == Step("cancel"), "it was requeued, and has nobody who leaves"
        assert step(LEAVES, status, replace(OVER, withdrawn=True)) == Step("end", "failed (NonZeroExitCode)")


@pytest.mark.parametrize("sign", ["withdrawn", "hopeless"])
def test_a_job_that_was_ended_on_purpose_or_can_never_run_fails_its_task(sign: str) -> None:
    over = replace(OVER, **{sign: True})  # type: ignore[arg-type]
    why = "failed (NonZeroExitCode)"
    if sign == "withdrawn":
        why = f"its job was cancelled in the cluster ({why})"
    for job in (JOB, RUNS, RUNS._replace(used=1)):
        assert step(job, "queued", over) == Step("fail", why)
        assert step(job, "running", over) == Step("fail", why)
        assert step(job, "completed", over) == Step("end", "failed (NonZeroExitCode)")


def test_a_job_that_waits_for_what_there_is_not_fails_its_task() -> None:
    never = ClusterJobState("17", "waiting", "pending (PartitionTimeLimit)", hopeless=True)
    assert step(JOB, "queued", never) == Step("fail", "pending (PartitionTimeLimit)")
    assert step(JOB, "cancelled", never) == Step("cancel")


def test_the_words_of_a_job_that_was_given_up_are_those_of_the_giving_up() -> None:
    given_up = LEAVES._replace(barren=1, told="only 1 of its 2 nodes connected within 600 s")
    assert step(given_up, "queued", OVER) == Step(
        "end", "only 1 of its 2 nodes connected within 600 s (failed (NonZeroExitCode))"
    )


def test_nodes_that_cannot_run_the_task_fail_it_once_all_are_there() -> None:
    lacks = "the node a has 0 GPUs, 1 are needed"
    assert step(RUNS, "queued", RUNNING, JobWorkers(("a", "b"), lacks)) == Step("fail", lacks)
    # Of an elastic one others may come, and then be enough.
    few = JobWorkers(("a", "b"), lacks, complete=False)
    assert step(RUNS, "queued", RUNNING, few) == Step("none")
    assert step(RAN_LONG, "queued", RUNNING, few) == Step("cancel", lacks, barren=True)


def test_patience_with_nodes_ends() -> None:
    assert step(RAN_LONG, "queued", RUNNING, HALF) == Step(
        "cancel", "only 1 of its 2 nodes connected within 600 s", barren=True
    )
    assert step(RAN_LONG, "queued", RUNNING, HERE) == Step(
        "cancel", "none of its workers took the task within 600 s", barren=True
    )
    # Of a job that has served its task the workers know by themselves when they have waited enough.
    assert step(RAN_LONG._replace(used=1), "queued", RUNNING, HERE) == Step("none")
    assert step(RAN_LONG, "running", RUNNING, HERE) == Step("none")


def test_what_is_left_of_a_job_of_which_a_node_died_is_given_back() -> None:
    ran = RAN_LONG._replace(used=1)
    left = JobWorkers(("a",), online=1, over_at=NOW - 31)
    why = "only 1 of its 2 nodes still have a worker"
    assert step(ran, "queued", RUNNING, left) == Step("leave", why)
    assert step(ran, "queued", RUNNING, replace(left, ids=())) == Step("cancel", why)
    assert step(ran, "queued", RUNNING, replace(left, over_at=NOW - 29)) == Step("none"), "it may come back yet"
    assert step(ran, "queued", RUNNING, replace(left, ids=(), online=2)) == Step("none"), "the server has restarted"
    assert step(ran, "running", RUNNING, left) == Step("none")
    # What was requeued since begins anew, and its workers are still to come.
    assert step(RUNS._replace(used=1), "queued", RUNNING, left) == Step("none")
    assert step(ran, "queued", RUNNING, replace(left, over_at=NOW - 900)) == Step("leave", why)


def test_a_job_that_is_frozen_or_just_being_requeued_is_not_given_back() -> None:
    ran, gone = RAN_LONG._replace(used=1), JobWorkers(online=0, over_at=NOW - 300)
    assert step(ran, "queued", RUNNING, gone).act == "cancel"
    assert step(ran, "queued", replace(RUNNING, ending=True), gone) == Step("none")
    assert step(ran, "queued", ClusterJobState("17", "waiting", "suspended"), gone) == Step("waits", "suspended")
    thawed = ran._replace(state="waiting", running_at=None)
    assert step(thawed, "queued", RUNNING, gone) == Step("runs")
    assert step(thawed._replace(running_at=NOW), "queued", RUNNING, gone) == Step("none"), "they come back yet"


def test_nodes_that_something_else_kept_from_the_task_do_not_count_against_it() -> None:
    held = JobWorkers(("a", "b"), held="waiting: 2 tasks of project red run, and its quota is 2")
    assert step(RUNS, "queued", RUNNING, held) == Step("none")
    told = step(RAN_LONG, "queued", RUNNING, held)
    assert (told.act, told.barren) == ("cancel", False)
    assert "its quota is 2" in (told.reason or "")


def step(
    job: ClusterJobRow,
    status: str | None = "queued",
    seen: ClusterJobState | None = WAITING,
    crew: JobWorkers | None = None,
) -> Step:
    more: dict[str, Any] = {"now": NOW, "patience_s": PATIENCE_S, "lost_after_s": 30.0}
    return next_step(job, status, seen, crew or JobWorkers(), **more)
