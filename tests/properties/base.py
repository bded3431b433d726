"""What every part of the queue's machine works on: a real server's core on a fake clock, its machines, and the model.

After each rule the model's tasks are compared with the store's, and every law of the store is checked. At the end
nobody disturbs any more: then all tasks must come to an end.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import Connection, Row, select

from tests.properties import laws
from tests.properties.hosts import Host, ending
from tests.properties.model import Model, S, Task
from tests.unit.orchestrator.lab import FakeClock, Lab
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator import ids
from tunefleet.orchestrator.access import api_keys, projects
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.scheduling import reaper, scheduler
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workers import worker_commands
from tunefleet.orchestrator.workflows import reruns
from tunefleet.schemas.projects import ProjectChange
from tunefleet.settings import ServerSettings

R = TypeVar("R")
PICK = st.integers(0, 11)
"""Chooses one of several, of which nobody knows beforehand how many there are."""
LOST_AFTER_S, ACCEPT_WITHIN_S = 4.0, 3.0
POINT = "10.0.0.1:29500"


_TASKS = select(laws.T["tasks"])


class _Counted:
    """Stands in for `secrets` where ids are made: what a machine does must depend on its rules alone."""

    def __init__(self) -> None:
        self._made = itertools.count(1)

    def token_hex(self, size: int) -> str:
        return f"{next(self._made):0{2 * size}x}"


class Stage(RuleBasedStateMachine):
    """The queue, three machines, and what is asked of them.

    Args:
        fresh: A data folder with tables and keys.
    """

    def __init__(self, fresh: Path) -> None:
        super().__init__()
        self.secrets, ids.secrets = ids.secrets, _Counted()
        self.folder = Path(tempfile.mkdtemp(prefix="queue-"))
        shutil.copytree(fresh, self.folder / "data")
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        data = self.folder / "data"
        self.settings = ServerSettings(
            data=data, synchronous="NORMAL", lost_after_s=LOST_AFTER_S, accept_within_s=ACCEPT_WITHIN_S,
            selection_jitter=0.0,
        )  # fmt: skip
        core = self._open()
        admin, key = (
            self.run(api_keys.authenticate(core, (data / "keys" / f"{name}.key").read_text().strip()))
            for name in ("admin", "worker")
        )
        self.lab = Lab(core, self.clock, admin, key)
        self.model = Model()
        self.hosts = [Host.named(self.lab, f"w{number}") for number in (1, 2, 3)]
        self.flows: list[str] = []
        self.others: list[str] = []
        """Tasks that the model does not follow."""
        self.quota: int | None = None
        self.shown = 0
        self.waiting = 0
        """How many tasks are queued or offered."""

    def _open(self) -> Any:
        clock = self.clock
        return open_context(self.settings, clock=Clock(lambda: clock.wall, lambda: clock.monotonic))

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a verb to its end."""
        return self.loop.run_until_complete(coroutine)

    def read(self, operation: Callable[[Connection], R]) -> R:
        """Look into the store."""
        return self.lab.core.db.read(operation).result()

    def rows(self, name: str) -> list[Row[Any]]:
        """Return all rows of a table."""
        return self.read(lambda connection: list(connection.execute(select(laws.T[name]))))

    def task(self, pick: int) -> str | None:
        """Choose a task, of the newest first."""
        known = [*self.model.tasks, *self.others]
        return known[-1 - pick % len(known)] if known else None

    @property
    def up(self) -> list[Host]:
        """The machines whose process runs."""
        return [host for host in self.hosts if not host.gone]

    def adopt(self, *, void: Iterable[TaskReason] = (), offered: bool = False) -> None:
        """Tell the model what the server has decided by itself, where it might have."""
        now, allowed = self.clock.wall, set(void)
        for row in self.rows("attempts"):
            known = self.model.attempts.get(row.id)
            if known is None and row.task_id in self.model.tasks:
                assert offered, f"{row.id} was offered by something else than placement"
                wrong = self.model.offer(row.id, row.task_id, row.worker_id, now)
                assert wrong is None, wrong
            elif known is not None and known.open and row.state == "void":
                assert row.reason in allowed, f"{row.id} of {row.task_id} became void: {row.reason}"
                task = self.model.tasks[row.task_id]
                if row.reason == TaskReason.CANCELLED_BY_USER:
                    assert task.desired == "cancel", f"{task.id} was cancelled by itself"
                    self.model.cancel(task)
                else:
                    self.model.void(row.id, TaskReason(row.reason), now)

    def follow(self, flow: Any, made: Sequence[Task] | None) -> None:
        """Note a workflow that was stored."""
        self.flows.append(flow.id)
        if made is None:
            self.others += [task.id for task in flow.tasks]
        else:
            self.model.submit(made, self.clock.wall)

    @invariant()
    def all_agrees(self) -> None:
        """The model's tasks are the store's, and every law holds."""
        there, wrong = self.read(lambda connection: (list(connection.execute(_TASKS)), laws.broken(connection)))
        assert not wrong, "\n".join(wrong)
        found = {row.id: row for row in there}
        self.waiting = sum(row.status in {"queued", "dispatched"} for row in there)
        for id_, task in self.model.tasks.items():
            row = found[id_]
            seen = (row.status, row.attempts, row.failures, row.losses, row.desired)
            # What is wanted of a task that does not run is nobody's business.
            count = 4 if task.status.final or task.status in {S.PAUSED, S.PENDING} else 5
            assert seen[:count] == task.summary[:count], (id_, seen, task)

    @invariant()
    def everything_can_be_shown(self) -> None:
        """Each task says how it stands, and why; the newest are asked."""
        self.shown += 1
        if self.shown % 4:
            return
        for id_ in list(self.model.tasks)[-2:] + self.others[-2:]:
            shown = self.run(tasks.get(self.lab.core, self.lab.admin, id_))
            told = self.run(explain.of_task(self.lab.core, self.lab.admin, id_))
            assert shown.id == id_
            assert told.why or shown.status in {"running", "completed"}, (shown, told)

    def teardown(self) -> None:
        """Let everything come to its end, then put it away."""
        try:
            self._settle()
        finally:
            ids.secrets = self.secrets
            self.lab.core.close()
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _settle(self) -> None:
        self.run(projects.change(self.lab.core, self.lab.admin, "default", ProjectChange(max_running=None)))
        for host in self.hosts:
            self.run(host.register(keeps=not host.gone))
            self.run(worker_commands.uncordon(self.lab.core, self.lab.admin, host.id))
        open_: list[Any] = []
        for _ in range(40):
            self.clock.advance(2000.0)
            for row in self.rows("tasks"):
                if row.status == "paused":
                    try:
                        self.run(reruns.resume(self.lab.core, self.lab.admin, row.id))
                    except ConflictError:  # nobody has its checkpoint any more
                        self.run(tasks.cancel(self.lab.core, self.lab.admin, row.id))
            for host in self.hosts:
                self.run(host.say())
            self.run(scheduler.run_once(self.lab.core))
            self.clock.advance(2.0)
            for host in self.hosts:
                self.run(host.say())
                self.run(host.say(accepts=tuple(host.offers), points=dict.fromkeys(host.offers, POINT)))
            for host in self.hosts:
                self.run(host.say(accepts=tuple(host.offers)))
            for host in self.hosts:
                ends = tuple(ending(token, "completed", "finished") for token in host.worker.holding)
                self.run(host.say(finishes=ends))
            # A look that comes late lets no offer grow older, as that of a part that its whole left behind.
            for _ in range(round(ACCEPT_WITHIN_S) + 2):
                self.clock.advance(1.0)
                self.run(reaper.run_once(self.lab.core))
            open_ = [row for row in self.rows("tasks") if row.finished_at is None]
            if not open_:
                break
        told = [
            (row.id, row.kind, row.status, self.run(explain.of_task(self.lab.core, self.lab.admin, row.id)).why)
            for row in open_
        ]
        assert not told, f"these never ended: {told}"
        wrong = self.read(laws.broken)
        assert not wrong, "\n".join(wrong)
