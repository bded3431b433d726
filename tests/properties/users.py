"""What users do with tasks and workflows, and what the model makes of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.properties.base import PICK, Stage
from tests.properties.documents import SHAPES
from tests.properties.model import S, Task
from tunefleet.errors import ConflictError, NotFoundError, SpecError
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.workflows import reruns, workflows
from tunefleet.schemas.api import CommandRequest, SubmitRequest

COMMANDS = ("save_checkpoint", "graceful_stop", "save_and_stop", "evaluate", "abort")
VERBS = ("submit_behind", "cancel", "cancel_all", "pause", "pause", "resume", "ask", "repeat", "repeat_all", "remove",
         "remove_all")  # fmt: skip
MOST_WAITING = 4


class Users(Stage):
    """The users of the queue."""

    @precondition(lambda self: self.flows)
    @rule(verb=st.sampled_from(VERBS), pick=PICK)
    def user(self, verb: str, pick: int) -> None:
        """A user does something with a task or a workflow."""
        getattr(self, verb)(pick)

    @precondition(lambda self: self.waiting < MOST_WAITING)
    @rule(shape=st.sampled_from(sorted(SHAPES)))
    def submit(self, shape: str) -> None:
        """A user submits a document."""
        wanted = SHAPES[shape]
        flow = self.run(workflows.submit(self.lab.core, self.lab.admin, SubmitRequest(document=wanted.text)))
        ids = [task.id for task in flow.tasks]
        self.follow(flow, None if wanted.tasks is None else wanted.tasks(ids))

    def submit_behind(self, pick: int) -> None:
        """A user submits a task that waits for one that was submitted before."""
        first = self.task(pick)
        if first is None or first in self.others:
            return
        spec = {"taskType": "echo", "data": {"type": "list", "items": ["x"]}, "dependsOn": [first]}
        text = json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "behind"}, "spec": spec})
        before = self.model.tasks[first]
        try:
            flow = self.run(workflows.submit(self.lab.core, self.lab.admin, SubmitRequest(document=text)))
        except SpecError:
            assert before.status.final
            return
        self.follow(flow, [Task(flow.tasks[0].id, (first,))])

    def cancel(self, pick: int) -> None:
        """A user cancels a task."""
        id_ = self.task(pick)
        if id_ is None:
            return
        known, here = self.model.tasks.get(id_), cluster_state.fleet_snapshot(self.lab.core)
        try:
            self.run(tasks.cancel(self.lab.core, self.lab.admin, id_))
        except ConflictError:
            assert known is None or (known.status.final and known.status is not S.CANCELLED), known
            return
        if known is not None:
            self._cancelled(known, here.limits)

    def cancel_all(self, pick: int) -> None:
        """A user cancels a whole workflow."""
        if not self.flows:
            return
        flow, here = self.flows[-1 - pick % len(self.flows)], cluster_state.fleet_snapshot(self.lab.core)
        ids = [row.id for row in self.rows("tasks") if row.workflow_id == flow]
        mine = [self.model.tasks[id_] for id_ in ids if id_ in self.model.tasks]
        try:
            self.run(workflows.cancel(self.lab.core, self.lab.admin, flow))
        except ConflictError:
            assert all(task.status.final for task in mine)
            return
        asked = [task for task in mine if task.status is S.RUNNING and self._worker(task) in here.limits]
        for task in mine:
            if task not in asked and not task.status.final:
                self._cancelled(task, here.limits)
        for task in asked:
            self._cancelled(task, here.limits)

    def _worker(self, task: Task) -> str:
        held = self.model.held_by(task)
        return "" if held is None else self.model.attempts[held].worker

    def _cancelled(self, task: Task, limits: dict[str, Any]) -> None:
        if task.status.final:
            return
        if task.status is S.RUNNING and self._worker(task) in limits:
            if task.desired != "cancel":
                self.model.wish(task, "cancel")
        else:
            self.model.cancel(task)

    def pause(self, pick: int) -> None:
        """A user pauses a training."""
        id_ = self.task(pick)
        if id_ is None:
            return
        known = self.model.tasks.get(id_)
        try:
            self.run(control.pause(self.lab.core, self.lab.admin, id_))
        except ConflictError:
            assert known is None or known.status is not S.RUNNING or known.kind == "echo" or known.desired == "cancel"
            return
        if known is None or known.status is S.PAUSED:
            return
        assert known.status is S.RUNNING
        assert known.kind != "echo"
        if known.desired != "pause":
            self.model.wish(known, "pause")

    def resume(self, pick: int) -> None:
        """A user lets a task go on."""
        id_ = self.task(pick)
        if id_ is None:
            return
        known = self.model.tasks.get(id_)
        goes_on = known is not None and (
            known.status is S.PAUSED or (known.status, known.desired) == (S.RUNNING, "pause")
        )
        try:
            self.run(reruns.resume(self.lab.core, self.lab.admin, id_))
        except ConflictError:
            assert not goes_on
            return
        if known is not None:
            assert goes_on
            self.model.resume(known)

    def ask(self, pick: int) -> None:
        """A user gives a training a command."""
        id_, command = self.task(pick), COMMANDS[pick % len(COMMANDS)]
        if id_ is not None:
            try:
                self.run(control.command(self.lab.core, self.lab.admin, id_, CommandRequest(command=command)))
            except ConflictError:
                pass
            else:
                known = self.model.tasks.get(id_)
                assert known is None or (known.status is S.RUNNING and known.kind != "echo")

    def repeat(self, pick: int) -> None:
        """A user runs a task again that has ended."""
        id_ = self.task(pick)
        if id_ is None:
            return
        known = self.model.tasks.get(id_)
        try:
            flow = self.run(reruns.retry(self.lab.core, self.lab.admin, id_))
        except ConflictError:
            return
        assert known is None or known.status.final
        made = None
        if known is not None:
            fresh = Task(flow.tasks[0].id, (), None, known.max_attempts, known.backoff_s, known.on_lost, known.kind)
            made = [fresh]
        self.follow(flow, made)

    def repeat_all(self, pick: int) -> None:
        """A user runs again what is left of a workflow."""
        if not self.flows:
            return
        flow_id = self.flows[-1 - pick % len(self.flows)]
        old = {row.name: row for row in self.rows("tasks") if row.workflow_id == flow_id}
        try:
            flow = self.run(workflows.retry(self.lab.core, self.lab.admin, flow_id))
        except (ConflictError, SpecError):
            return
        self.flows.append(flow.id)
        self.others += [task.id for task in flow.tasks]
        assert old

    def remove(self, pick: int) -> None:
        """A user removes a task."""
        id_ = self.task(pick)
        if id_ is None:
            return
        known = self.model.tasks.get(id_)
        try:
            self.run(tasks.remove(self.lab.core, self.lab.admin, id_))
        except (ConflictError, NotFoundError):
            return
        assert known is None or (known.status.final and not self.model.needed_by(known))
        self._forget()

    def remove_all(self, pick: int) -> None:
        """A user removes a workflow."""
        if not self.flows:
            return
        flow = self.flows[-1 - pick % len(self.flows)]
        try:
            self.run(workflows.remove(self.lab.core, self.lab.admin, flow))
        except ConflictError:
            return
        self._forget()

    def _forget(self) -> None:
        there = {row.id for row in self.rows("tasks")}
        for id_ in self.model.tasks.keys() - there:
            assert self.model.tasks.pop(id_).status.final
        self.others = [id_ for id_ in self.others if id_ in there]
        left = {row.id for row in self.rows("workflows")}
        self.flows = [flow for flow in self.flows if flow in left]
