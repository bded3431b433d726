"""What a queue of tasks ought to do, in a few lines: tasks, their attempts, and what an end of one means for others.

It knows no store, no link and no clock but the time that it is told, and decides nothing about placement: who was
offered what is told to it, and it says whether that was right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet.lifecycle.task import OUTCOMES, TRANSITIONS, RetryBudget, TaskReason, TaskStatus

MAX_LOST: Final = 5
S = TaskStatus


@dataclass
class Attempt:
    """One try: whose, at which worker, and whether it was offered, accepted, finished or is void."""

    task: str
    worker: str
    state: str = "offered"

    @property
    def open(self) -> bool:
        """Whether its token is good."""
        return self.state in {"offered", "accepted"}


@dataclass
class Task:
    """A task as a user knows it.

    Args:
        id: Its id.
        upstreams: Whom it waits for, by id.
        wants: The value of `ok` that the first of those must have found; null if that does not matter.
        max_attempts: Tries in all.
        backoff_s: Pause before the first repeat.
        on_lost: `replace` or `wait`.
        kind: Of the task.
    """

    id: str
    upstreams: tuple[str, ...] = ()
    wants: bool | None = None
    max_attempts: int = 3
    backoff_s: float = 10.0
    on_lost: str = "replace"
    kind: str = "echo"
    status: TaskStatus = S.PENDING
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    desired: str = "run"
    generation: int = 0
    reached: int = 0
    ready_at: float = 0.0
    found: bool | None = None

    @property
    def summary(self) -> tuple[str, int, int, int, str]:
        """What is compared with the store."""
        return self.status.value, self.attempts, self.failures, self.losses, self.desired


@dataclass
class Model:
    """All tasks that were submitted and not removed, and every attempt that there ever was."""

    tasks: dict[str, Task] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def submit(self, tasks: Sequence[Task], now: float) -> None:
        """Take tasks; those that wait for nobody are ready."""
        self.tasks.update((task.id, task) for task in tasks)
        for task in tasks:
            self._judge(task)

    def held_by(self, task: Task) -> str | None:
        """Return the open attempt of a task."""
        return next((id_ for id_, each in self.attempts.items() if each.task == task.id and each.open), None)

    def offer(self, attempt_id: str, task_id: str, worker: str, now: float) -> str | None:
        """Take an offer that was made; returns what is wrong about it."""
        task = self.tasks[task_id]
        wrong = None
        if task.status is not S.QUEUED:
            wrong = f"{task_id} is {task.status}, and was offered"
        elif task.ready_at > now:
            wrong = f"{task_id} was offered before its backoff ended"
        task.status, task.attempts, task.desired = S.DISPATCHED, task.attempts + 1, "run"
        self.attempts[attempt_id] = Attempt(task_id, worker)
        return wrong

    def accept(self, attempt_id: str) -> None:
        """Begin an offered attempt; a void one, or one that has begun, does not change."""
        attempt = self.attempts[attempt_id]
        if attempt.state == "offered":
            attempt.state = "accepted"
            self.tasks[attempt.task].status = S.RUNNING

    def finish(self, attempt_id: str, reason: TaskReason, now: float, *, found: bool | None = None) -> None:
        """Take the end that the holder of an attempt tells; it implies that it was accepted."""
        attempt = self.attempts[attempt_id]
        if not attempt.open:
            return
        self.accept(attempt_id)
        attempt.state, task = "finished", self.tasks[attempt.task]
        self._ended(task, reason, now, found)
        # The pause was taken back, and the job had it already: it goes on by itself.
        if task.status is S.PAUSED and task.desired == "run" and task.generation > task.reached:
            self._requeue(task)

    def void(self, attempt_id: str, reason: TaskReason, now: float) -> None:
        """Take an attempt away from its holder."""
        attempt = self.attempts[attempt_id]
        assert attempt.open
        attempt.state = "void"
        if reason not in {TaskReason.CANCELLED_BY_USER}:
            self._ended(self.tasks[attempt.task], reason, now)

    def wish(self, task: Task, desired: str) -> None:
        """Let a task be wanted otherwise."""
        task.desired, task.generation = desired, task.generation + 1

    def cancel(self, task: Task) -> None:
        """End a task at once; its attempt is void."""
        held = self.held_by(task)
        if held is not None:
            self.attempts[held].state = "void"
        self._end(task, S.CANCELLED)

    def expire(self, task: Task) -> None:
        """Fail a task that waited too long in the queue."""
        assert task.status is S.QUEUED, f"{task.id} is {task.status}, and its wait was over"
        self._end(task, S.FAILED)

    def resume(self, task: Task) -> None:
        """Let a paused task go back into the queue, or a running one run on that was to pause."""
        if task.status is S.PAUSED:
            self._requeue(task)
        else:
            self.wish(task, "run")

    def needed_by(self, task: Task) -> list[Task]:
        """Return who still needs the result of a task."""
        return [each for each in self.tasks.values() if task.id in each.upstreams and not each.status.final]

    def _requeue(self, task: Task) -> None:
        task.status, task.desired, task.ready_at = S.QUEUED, "run", 0.0

    def _ended(self, task: Task, reason: TaskReason, now: float, found: bool | None = None) -> None:
        if task.desired == "cancel":
            self._end(task, S.CANCELLED)
            return
        outcome, retry = OUTCOMES[reason], False
        if outcome.budget is RetryBudget.LOST:
            task.losses += 1
            retry = task.losses <= MAX_LOST
        elif outcome.budget is RetryBudget.ATTEMPTS:
            task.failures += 1
            retry = task.failures < task.max_attempts
            if retry:
                task.ready_at = now + task.backoff_s * 2 ** (task.failures - 1) if task.backoff_s else 0.0
        elif outcome.budget is RetryBudget.FREE:
            retry = True
        if outcome.budget is RetryBudget.FREE:
            task.status, task.desired = S.QUEUED, "run"
        elif retry and task.desired == "pause":
            task.status = S.PAUSED
        elif retry:
            task.status, task.desired = S.QUEUED, "run"
        elif outcome.status is S.PAUSED:
            task.status = S.PAUSED
        else:
            task.found = found
            self._end(task, outcome.status)

    def _end(self, task: Task, status: TaskStatus) -> None:
        assert status in TRANSITIONS[task.status], f"{task.id}: {task.status} became {status}"
        task.status = status
        for each in list(self.tasks.values()):
            if task.id in each.upstreams:
                self._judge(each)

    def _judge(self, task: Task) -> None:
        """Decide about a task that waits for others: failed counts before cancelled, and that before skipped."""
        if task.status is not S.PENDING:
            return
        above = [self.tasks[id_] for id_ in task.upstreams if id_ in self.tasks]
        ends = {each.status for each in above}
        for status in (S.FAILED, S.CANCELLED, S.SKIPPED):
            if status in ends:
                self._end(task, status)
                return
        if ends <= {S.COMPLETED}:
            unmet = task.wants is not None and above[0].found is not task.wants
            if unmet:
                self._end(task, S.SKIPPED)
            else:
                task.status = S.QUEUED
