"""What `--wait` says of tasks that no worker can run: it would wait in silence for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from tunefleet.cli.console import err
from tunefleet.errors import ConflictError
from tunefleet.schemas.api import TaskView, WorkflowView

# A worker that has just been started registers within that.
_PATIENCE_S: Final = 5.0
_STUCK: Final = "unschedulable"


class Lookout:
    """Looks at what is waited for, and says once of each task that no worker can run it."""

    def __init__(self, *, strict: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._strict = strict
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def task(self, task: TaskView) -> None:
        """Look at a task.

        Raises:
            ConflictError: If no worker can run it, and that is not to be waited for.
        """
        self._look([task])

    def workflow(self, workflow: WorkflowView) -> None:
        """Look at the tasks of a workflow; raises what `task` raises."""
        self._look(workflow.tasks)

    def _look(self, tasks: Sequence[TaskView]) -> None:
        now = self._clock()
        for task in tasks:
            if not (task.why or "").startswith(_STUCK):
                self._since.pop(task.id, None)
            elif now - self._since.setdefault(task.id, now) >= _PATIENCE_S and task.id not in self._told:
                self._told.add(task.id)
                self._tell(task)

    def _tell(self, task: TaskView) -> None:
        what = f"{task.name} ({task.id}) is {task.why}"
        if self._strict:
            raise ConflictError(what, hint=f"It is waited for no longer and stays queued: tunefleet cancel {task.id}")
        err().print(Text(what, style="warn"))
        err().print(
            f"It waits for a worker that can. See tunefleet why {task.id}; --strict waits for none.", style="dim"
        )
