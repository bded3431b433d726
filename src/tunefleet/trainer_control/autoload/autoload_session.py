"""The session of a `tunefleet run` process: one journal, one status, one port, for any number of Trainers."""

from __future__ import annotations

import itertools
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import diagnostics
from ..checkpoints.manifest import launch_of
from ..checkpoints.resume import decided
from ..control.command_queue import CommandQueue
from ..control.control_server import ControlServer
from ..control.discovery import EndpointFolder
from ..control.file_channel import FileChannel
from ..control.overrides import Overrides
from ..distributed import world
from ..journal.null import NullJournal
from ..journal.status import StatusFile
from ..journal.writer import JournalWriter
from ..session import JobSession
from .trainings import Training

logger = logging.getLogger("tunefleet.run")


@dataclass(eq=False)
class AttachedRun:
    """A job folder attached to this process.

    Args:
        session: The session of the callbacks.
        board: The command queue.
        server: The control port; started with the first training run.
        files: Takes commands as files, without a port.
        endpoint: Makes the job discoverable without a port.
    """

    session: JobSession
    board: CommandQueue
    server: ControlServer | None = None
    files: FileChannel | None = None
    endpoint: EndpointFolder | None = None
    _failed: bool = False
    _ended: bool = False

    @classmethod
    def open(cls, folder: Path, job: dict[str, Any], training: Training) -> AttachedRun:
        """Start reporting; only rank 0 does.

        Args:
            training: The first training run of the process.

        Raises:
            OSError: If the folder cannot be written.
        """
        rank, checkpoint, numbers = world.rank(), training.checkpoint, itertools.count(training.number)
        if rank > 0:
            null_journal = NullJournal(log_events=False)
            session = JobSession(folder, job, null_journal, StatusFile(None), checkpoint, trainings=numbers, rank=rank)
            return cls(session, CommandQueue())
        status = StatusFile(folder)
        status.write(state="starting", phase="loading")
        start = (checkpoint.step, checkpoint.digest) if checkpoint is not None else (0, None)
        attempt = int(job.get("attempt", 1))
        parent = launch_of(checkpoint) if checkpoint is not None else None
        journal = JournalWriter(folder, job["launch"], attempt, *start, parent=parent, on_tick=status.flush_if_due)
        if checkpoint is not None and decided(folder, job) is None:  # else the deciding process has recorded it
            journal.event("training.resumed", f"Resumed from {checkpoint.path.name}.", data={"step": checkpoint.step})
        session = JobSession(folder, job, journal, status, checkpoint, trainings=numbers)
        run = cls(session, CommandQueue(folder))
        run._listen()
        diagnostics.watch(run)
        return run

    def add_to(self, trainer: Any) -> None:
        """Add our callbacks to a Trainer, after its own, and the `max_steps` that was set for it."""
        # Imports transformers, which the script has imported by now.
        from ..callbacks.factory import assemble

        overrides = Overrides(self.session.folder)
        overrides.at_init(trainer.args)
        for callback in assemble(self.session, self.board, self.server, overrides):
            trainer.add_callback(callback)

    def on_exception(self, error: BaseException) -> None:
        """Record why the script failed."""
        if self._ended:
            return
        self._failed = True
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        try:
            if isinstance(error, KeyboardInterrupt):
                # Ctrl-C is a request of the user, not a failure.
                self.session.status.write(state="stopped", intent="stop", error="Interrupted by Ctrl-C.")
            else:
                message = f"{type(error).__name__}: {first}".rstrip(": ")
                self.session.fail(message, diagnostics.kind_of(error), text)
        except OSError as fault:
            logger.warning("The failure of the run could not be recorded: %s", fault)

    def on_exit(self) -> None:
        """Record a normal end, and withdraw the endpoint. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        self.board.close("the process had ended")
        try:
            if not self._failed and not self.session.status.final:
                self.session.finish()
        except OSError as fault:
            logger.warning("The end of the run could not be recorded: %s", fault)
        if self.files is not None:
            self.files.stop()
        if self.server is not None:
            self.server.stop()
        if self.endpoint is not None:
            self.endpoint.withdraw()
        self.session.close()

    def _listen(self) -> None:
        session = self.session
        place, job_id = session.job.get("endpoint_dir"), session.job["job_id"]
        if not place:
            return
        if session.job.get("spec", {}).get("http", True):
            self.server = ControlServer(job_id, self.board, session.status, Path(place), job_folder=session.folder)
            return
        self.endpoint = EndpointFolder(Path(place), job_id, session.folder)
        try:
            self.endpoint.publish(host="localhost", port=0, token=None)
            session.status.add_mirror(self.endpoint.status_copy)
            self.files = FileChannel(self.endpoint.path, self.board)
            self.files.start()
        except OSError as error:
            self.files = None
            logger.warning("The training run cannot be controlled: %s", error)
