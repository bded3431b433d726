"""A worker on a node allocated by a cluster scheduler: for one task, or for the lifetime of the node."""

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
class EphemeralWorkerOptions:
    """Options of an ephemeral worker.

    Args:
        task_id: The only task that it runs; None for any.
        patience_s: How long a single-task worker waits for its task.
        idle_s: How long a worker for any task may be idle before it exits; None for no limit.
        folder: Its results folder; None if the settings name one.
        name: ID of the worker; None if the settings name one.
    """

    task_id: str | None
    patience_s: float
    idle_s: float | None
    folder: Path | None
    name: str | None

    @classmethod
    def of(cls, task_id: str | None, settings: WorkerSettings) -> EphemeralWorkerOptions:
        """Build the options from the settings; folder and worker ID are derived from the cluster's job and node."""
        host = socket.gethostname().partition(".")[0]
        job = settings.nodes_job or f"tunefleet-{task_id}"
        # Keyed by node: restarted on the same node, the worker finds its state; on another node it is a new worker.
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
        """Return the settings with the options of the ephemeral worker applied."""
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
        """Stop the worker in the background if its task does not arrive, or if it is idle for too long."""
        if self.task_id is None and self.idle_s is None:
            return
        threading.Thread(target=self._lose_patience, args=(worker,), name="patience", daemon=True).start()

    def _lose_patience(self, worker: Worker) -> None:
        idle_since, most_s = (
            time.monotonic(),
            self.patience_s if self.task_id is not None else self.idle_s or self.patience_s,
        )
        # Polls at a quarter of the limit at least, so that a short limit is not overrun by a whole second.
        while not worker.over.wait(min(1.0, most_s / 4)):
            if not worker.idle:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > most_s:
                self._end(worker, most_s)

    def _end(self, worker: Worker, idle_s: float) -> None:
        if self.task_id is None:
            logger.info("Idle for %g s: releasing the node.", idle_s)
            worker.make_way()
        else:
            worker.give_up(self._given_up(registered=worker.registered))

    def _given_up(self, *, registered: bool) -> MachineError:
        if not registered:
            return MachineError(
                f"The server did not respond for {self.patience_s:g} s: releasing the node.",
                hint="Set TUNEFLEET_NODES_URL on the server to the URL that nodes use to reach it.",
            )
        return MachineError(
            f"No task arrived for {self.patience_s:g} s: releasing the node.",
            hint=f"`tunefleet why {self.task_id}` shows why it is pending; TUNEFLEET_NODES_PATIENCE_S sets the limit.",
        )

    def clean(self, results_dir: Path) -> None:
        """Delete the folder of a worker that has delivered everything: no later worker reads it."""
        if self.folder is None or results_dir != self.folder:
            return
        try:
            shutil.rmtree(results_dir)
        except OSError as error:
            logger.warning("Could not delete %s: %s", results_dir, error)
            return
        with suppress(OSError):  # other nodes of the job still have folders in it
            results_dir.parent.rmdir()
