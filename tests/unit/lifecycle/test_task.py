"""The table of a task's life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.errors import IllegalTransition
from tunefleet.lifecycle.task import FINAL, OUTCOMES, TRANSITIONS, RetryBudget, TaskReason, TaskStatus, move


def test_every_reason_has_an_outcome_and_every_status_a_row() -> None:
    assert set(OUTCOMES) == set(TaskReason)
    assert set(TRANSITIONS) == set(TaskStatus)


@pytest.mark.parametrize("reason", TaskReason)
def test_every_reason_can_happen_to_some_status(reason: TaskReason) -> None:
    assert any(OUTCOMES[reason].status in targets for targets in TRANSITIONS.values())


def test_every_status_but_the_first_can_be_reached() -> None:
    reached = {target for targets in TRANSITIONS.values() for target in targets}
    assert reached == set(TaskStatus) - {TaskStatus.PENDING}


@given(steps=st.lists(st.tuples(st.sampled_from(TaskReason), st.booleans()), max_size=60))
def test_no_path_leaves_a_final_state(steps: list[tuple[TaskReason, bool]]) -> None:
    status = TaskStatus.PENDING
    for reason, retry in steps:
        try:
            after = move(status, reason, retry=retry)
        except IllegalTransition:
            continue
        assert not status.final
        assert after in TRANSITIONS[status]
        status = after


@pytest.mark.parametrize("status", [status for status in TaskStatus if not status.final])
def test_whatever_is_not_final_may_be_cancelled_or_fail_with_what_it_depends_on(status: TaskStatus) -> None:
    assert move(status, TaskReason.CANCELLED_BY_USER) is TaskStatus.CANCELLED
    assert move(status, TaskReason.UPSTREAM_FAILED) is TaskStatus.FAILED


@pytest.mark.parametrize("reason", TaskReason)
def test_a_retry_leads_to_the_queue_only_where_there_is_a_budget(reason: TaskReason) -> None:
    status = TaskStatus.RUNNING
    retryable = OUTCOMES[reason].budget is not RetryBudget.NONE
    if retryable:
        assert move(status, reason, retry=True) is TaskStatus.QUEUED
    elif OUTCOMES[reason].status in TRANSITIONS[status]:
        assert move(status, reason, retry=True) is OUTCOMES[reason].status


@pytest.mark.parametrize("status", sorted(FINAL))
def test_an_illegal_change_names_both_ends(status: TaskStatus) -> None:
    with pytest.raises(IllegalTransition, match=f"{status.value} cannot become queued"):
        move(status, TaskReason.READY)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (TaskReason.STOPPED_EARLY, TaskStatus.COMPLETED),
        (TaskReason.ABORTED, TaskStatus.CANCELLED),
        (TaskReason.BAD_INPUT, TaskStatus.FAILED),
        (TaskReason.PAUSED, TaskStatus.PAUSED),
    ],
)
def test_how_a_run_ends(reason: TaskReason, status: TaskStatus) -> None:
    assert move(TaskStatus.RUNNING, reason) is status


def test_a_paused_task_goes_back_to_the_queue() -> None:
    assert move(TaskStatus.PAUSED, TaskReason.RESUMED) is TaskStatus.QUEUED
