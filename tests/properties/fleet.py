"""What the machines of the fleet, the server's loops, its admins and time do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.properties.base import PICK, POINT, Stage
from tests.properties.hosts import Host, ending
from tests.properties.model import S
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access import projects
from tunefleet.orchestrator.scheduling import reaper, scheduler
from tunefleet.orchestrator.tasks.retry_decision import reason_of
from tunefleet.orchestrator.workers import worker_commands, workers
from tunefleet.schemas.projects import ProjectChange
from tunefleet.schemas.worker_link import Finish, Reached

End = tuple[str, str, bool]
"""Outcome, reason, and what was found."""
ENDS = st.sampled_from(
    [("completed", "finished", True), ("completed", "finished", False), ("completed", "stopped_early", True),
     ("failed", "crashed", True), ("failed", "bad_input", True), ("failed", "out_of_memory", True),
     ("paused", "paused", True), ("cancelled", "aborted", True), ("released", "released", True),
     ("failed", "delivery_failed", True), ("failed", "worker_lost", True)]
)  # fmt: skip
TROUBLES = ("start_host", "die", "sleep", "restart", "set_quota", "control", "leave", "forget_host")
DECIDED = (TaskReason.NOT_ACCEPTED, TaskReason.WORKER_LOST, TaskReason.TIMEOUT, TaskReason.CANCELLED_BY_USER)
"""Why a look at the fleet takes attempts away."""


class Fleet(Stage):
    """The machines, and the server that they work for."""

    @initialize()
    def begin(self) -> None:
        """Two machines are there from the start."""
        for host in self.hosts[:2]:
            self.run(host.register(keeps=False))
            self.run(host.say())

    @rule(trouble=st.sampled_from(TROUBLES), pick=PICK)
    def trouble(self, trouble: str, pick: int) -> None:
        """Something happens to a machine, to the server or to time."""
        getattr(self, trouble)(pick)

    def say(self, host: Host, accepts: Sequence[str] = (), finishes: Sequence[Finish] = (), **more: Any) -> None:
        """Let a machine speak, and the model hear it."""
        self.run(host.say(accepts=tuple(accepts), finishes=tuple(finishes), **more))
        now = self.clock.wall
        own = {id_ for id_, each in self.model.attempts.items() if each.worker == host.id}
        for token in (*accepts, *(each.token for each in finishes)):
            id_ = token.partition(".")[0]
            if id_ in own and self.model.attempts[id_].task in self.model.tasks:
                self.model.accept(id_)
        for each in more.get("reached", ()):
            attempt = self.model.attempts.get(each.token.partition(".")[0])
            if attempt is not None and attempt.open and attempt.worker == host.id:
                task = self.model.tasks[attempt.task]
                task.reached = max(task.reached, each.generation)
        for each in {each.token: each for each in finishes}.values():
            id_ = each.token.partition(".")[0]
            if id_ in own and self.model.attempts[id_].task in self.model.tasks:
                found = bool(each.result.get("ok")) if each.outcome == "completed" else None
                self.model.finish(id_, reason_of(each.outcome, each.reason), now, found=found)

    def start_host(self, pick: int) -> None:
        """A machine's process starts, or starts anew; what it does not hold any more is lost."""
        host, keeps = self.hosts[pick % len(self.hosts)], pick % 2 == 0
        held = {token.partition(".")[0] for token in host.worker.holding} if keeps else set()
        mine = {id_ for id_, each in self.model.attempts.items() if each.worker == host.id and each.state == "accepted"}
        self.run(host.register(keeps=keeps))
        for id_ in sorted(mine - held):
            self.model.void(id_, TaskReason.WORKER_LOST, self.clock.wall)
        self.run(host.say())

    @precondition(lambda self: self.waiting and self.up)
    @rule(pick=PICK)
    def hear(self, pick: int) -> None:
        """A machine asks what there is for it, and the server looks what it has."""
        if self.up:
            host = self.up[pick % len(self.up)]
            self.say(host)
            self.place()
            self.clock.advance(1.1)
            self.say(host)

    @precondition(lambda self: self.waiting and self.up)
    @rule()
    def run_all(self) -> None:
        """The machines take all that they are offered."""
        for host in self.up:
            self.say(host)
        self.place()
        self.clock.advance(1.1)
        for host in self.up:
            self.say(host)
            self.say(host, accepts=list(host.offers), points=dict.fromkeys(host.offers, POINT))

    @precondition(lambda self: any(host.worker.holding for host in self.up))
    @rule(end=ENDS, most=st.integers(1, 3))
    def finish_all(self, end: End, most: int) -> None:
        """The machines' oldest jobs end alike, and new ones begin."""
        outcome, reason, ok = end
        for host in self.up:
            self.say(host, finishes=[ending(token, outcome, reason, ok=ok) for token in host.worker.holding[:most]])
        if self.up:
            self.run_all()

    @precondition(lambda self: any(host.offers for host in self.up))
    @rule(pick=PICK, most=st.integers(1, 4))
    def accept(self, pick: int, most: int) -> None:
        """A machine takes what it was offered."""
        takers = [host for host in self.up if host.offers]
        if takers:
            host = takers[pick % len(takers)]
            self.say(host, accepts=list(host.offers)[:most])

    @precondition(lambda self: any(host.offers or host.worker.holding for host in self.up))
    @rule(pick=PICK, end=ENDS, at_once=st.booleans())
    def finish(self, pick: int, end: End, at_once: bool) -> None:
        """A job ends, or what was offered ends without having been accepted first."""
        tokens = [(host, token) for host in self.up for token in [*host.worker.holding, *host.offers]]
        if tokens:
            host, token = tokens[pick % len(tokens)]
            outcome, reason, ok = end
            accepts = [token] if at_once else []
            self.say(host, accepts=accepts, finishes=[ending(token, outcome, reason, ok=ok)])

    @precondition(lambda self: any(host.classes for host in self.hosts))
    @rule(pick=PICK, who=PICK, end=ENDS)
    def lie(self, pick: int, who: int, end: End) -> None:
        """A machine says again what it has said, or speaks of what is not its own, or not any more."""
        tokens = [token for host in self.hosts for token in host.classes]
        if tokens and self.up:
            host, token = self.up[who % len(self.up)], tokens[-1 - pick % len(tokens)]
            outcome, reason, ok = end
            told = ending(token, outcome, reason, ok=ok)
            self.say(host, accepts=[token], finishes=[told, told], reached=(Reached(token=token, generation=1),))

    @precondition(lambda self: any(host.wishes for host in self.up))
    @rule(pick=PICK)
    def reach(self, pick: int) -> None:
        """A machine says that its jobs are as they were wanted."""
        told = [host for host in self.up if host.wishes]
        if told:
            host = told[pick % len(told)]
            reached = tuple(Reached(token=token, generation=wish.generation) for token, wish in host.wishes.items())
            self.say(host, reached=reached)

    def die(self, pick: int) -> None:
        """A machine's process stops; nobody says so."""
        if self.up:
            self.up[pick % len(self.up)].gone = True

    def place(self) -> None:
        """The server matches what waits with who is free."""
        self.run(scheduler.run_once(self.lab.core))
        before = len(self.model.attempts)
        self.adopt(offered=True)
        if self.quota is not None and len(self.model.attempts) > before:
            running = [row for row in self.rows("tasks") if row.status in {"dispatched", "running"}]
            wholes = {row.parent_seq for row in self.rows("shards")}
            assert sum(row.seq not in wholes for row in running) <= self.quota

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        """Time passes, and the server looks; the machines that run say that they live."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            for host in self.up:
                self.run(host.say())
            self.run(reaper.run_once(self.lab.core))
            self.adopt(void=DECIDED)
            failed = {row.id: row for row in self.rows("tasks") if row.status == "failed" and row.reason == "timeout"}
            for id_, task in self.model.tasks.items():
                if id_ in failed and task.status is S.QUEUED:
                    assert (failed[id_].queue_deadline or 0) <= self.clock.wall
                    self.model.expire(task)

    def sleep(self, pick: int) -> None:
        """The whole machine sleeps: no time that anybody has watched."""
        self.clock.advance((3.0, 30.0, 700.0, 4000.0)[pick % 4])

    def restart(self, pick: int) -> None:
        """The server is stopped and starts again on its data."""
        self.lab.core.close()
        self.lab.core = self._open()

    def set_quota(self, pick: int) -> None:
        """An admin says how many tasks may run at once."""
        most = (None, 1, 2)[pick % 3]
        self.quota = most
        change = ProjectChange(max_running=most)
        self.run(projects.change(self.lab.core, self.lab.admin, "default", change))

    def control(self, pick: int) -> None:
        """An admin decides about a machine."""
        what = ("cordon", "drain", "uncordon", "uncordon")[pick % 4]
        try:
            self.run(
                getattr(worker_commands, what)(self.lab.core, self.lab.admin, self.hosts[pick % len(self.hosts)].id)
            )
        except NotFoundError:
            assert not any(row.id == self.hosts[pick % len(self.hosts)].id for row in self.rows("workers"))

    def leave(self, pick: int) -> None:
        """A machine that was told to leave and has nothing left says its last word."""
        idle = [host for host in self.up if not host.worker.holding]
        if idle:
            host = idle[pick % len(idle)]
            self.run(host.say(leaves=True, draining=True))
            self.adopt(void=(TaskReason.NOT_ACCEPTED,))
            host.gone = True
            host.offers.clear()

    def forget_host(self, pick: int) -> None:
        """An admin removes a machine that does not respond."""
        host = self.hosts[pick % len(self.hosts)]
        try:
            self.run(workers.remove(self.lab.core, self.lab.admin, host.id))
        except (ConflictError, NotFoundError):
            return
        self.adopt(void=(TaskReason.NOT_ACCEPTED, TaskReason.WORKER_LOST))
        host.gone = True
