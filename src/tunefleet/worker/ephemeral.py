"""A worker on a node that a cluster has given: for one task, or for as long as the node is there."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tunefleet.errors import MachineError
from tunefleet.settings import WorkerSettings
from tunefleet.worker.worker import Worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Once:
    """What is special about it.

    Args:
        task_id: The only task that it runs; None for any.
        idle_s: How long one for any task may have nothing to do before it leaves; None for ever.
        folder: Its results folder; None if the settings named one.
        name: Of the worker; None if the settings named one.
    """

    task_id: str | None
    patience_s: float
    idle_s: float | None
    folder: Path | None
    name: str | None

    @classmethod
    def of(cls, task_id: str | None, settings: WorkerSettings) -> Once:
        """Return what the settings say: job and node of the cluster make folder and name."""
        host = socket.gethostname().partition(".")[0]
        job = settings.nodes_job or f"tunefleet-{task_id}"
        # On the same node again it finds what it had there; on another one it is another worker.
        folder = settings.nodes_folder / job / f"{settings.node}-{host}"
        own_folder = "results_dir" in settings.model_fields_set
        return cls(
            task_id,
            settings.nodes_patience_s,
            settings.nodes_idle_s,
            None if own_folder else folder,
            None if settings.worker_id is not None else f"{job}.{settings.node}.{host}",
        )

    def applied(self, settings: WorkerSettings) -> WorkerSettings:
        """Return the settings of the worker."""
        changed: dict[str, object] = {}
        if self.task_id is not None:
            tag = f"only:{self.task_id}"
            changed["tags"] = (*(each for each in settings.tags if each != tag), tag)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            changed["results_dir"] = self.folder
        if self.name is not None:
            changed["worker_id"] = self.name
        return settings.model_copy(update=changed)

    def watch(self, worker: Worker) -> None:
        """Let a worker give up to which its task does not come, and one leave that has nothing to do."""
        if self.task_id is None and self.idle_s is None:
            return
        threading.Thread(target=self._lose_patience, args=(worker,), name="patience", daemon=True).start()

    def _lose_patience(self, worker: Worker) -> None:
        idle_since, most_s = (
            time.monotonic(),
            self.patience_s if self.task_id is not None else self.idle_s or self.patience_s,
        )
        while not worker.over.wait(min(1.0, most_s / 4)):
            if not worker.idle:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > most_s:
                self._end(worker, most_s)

    def _end(self, worker: Worker, idle_s: float) -> None:
        if self.task_id is None:
            logger.info("Nothing was to be done for %g s: the node is given back.", idle_s)
            worker.make_way()
        else:
            worker.give_up(self._given_up(registered=worker.registered))

    def _given_up(self, *, registered: bool) -> MachineError:
        if not registered:
            return MachineError(
                f"The server did not answer for {self.patience_s:g} s: the node is given back.",
                hint="TUNEFLEET_NODES_URL, on the server, is the address at which nodes reach it.",
            )
        return MachineError(
            f"No task came for {self.patience_s:g} s: the node is given back.",
            hint=f"`tunefleet why {self.task_id}` says what it waits for; TUNEFLEET_NODES_PATIENCE_S sets how long.",
        )

    def clean(self, results_dir: Path) -> None:
        """Delete the folder of a worker that has delivered all: nobody comes back to this node for it."""
        if self.folder is None or results_dir != self.folder:
            return
        try:
            shutil.rmtree(results_dir)
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", results_dir, error)
            return
        with suppress(OSError):  # another node has its folder there still
            results_dir.parent.rmdir()
