"""A job without a Trainer that processes items: commands between two items, and progress.

The job must save finished items itself: a pause only ends the process, and the next launch continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from tunefleet import trainer_control
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.trainer_control.control.command_queue import Command, CommandQueue
from tunefleet.trainer_control.control.control_server import ControlServer
from tunefleet.trainer_control.session import JobSession

logger = logging.getLogger(__name__)
_PAUSED: Final = "the run was paused"


class ItemControl:
    """A context manager that accepts commands.

    Args:
        sync: Makes finished items durable; None if each item already is.
    """

    def __init__(
        self, session: trainer_control.JobSession, *, kept: str, sync: Callable[[], None] | None = None
    ) -> None:
        self._session = session
        self._kept = kept
        self._sync = sync
        self._board = CommandQueue(session.folder)
        self._server: ControlServer | None = None

    def __enter__(self) -> ItemControl:
        """Open the control port, if the job has one."""
        place, job_id = self._session.job.get("endpoint_dir"), str(self._session.job["job_id"])
        if place:
            folder, status = self._session.folder, self._session.status
            self._server = ControlServer(job_id, self._board, status, Path(place), job_folder=folder)
            try:
                self._server.start()
            except OSError as error:
                # The job runs without commands rather than not at all.
                logger.warning("The control port could not be opened: %s", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop accepting commands."""
        self._board.close("the run has no more items")
        if self._server is not None:
            self._server.stop()

    def heed(self, done: int) -> None:
        """Handle pending commands; called between two items.

        Raises:
            SystemExit: If a command ends the process; the status has the outcome.
        """
        # A plain flag, so that a call per item costs nothing.
        if not self._board.armed:
            return
        for command in self._board.take():
            self._do(command, done)

    def _do(self, command: Command, done: int) -> None:
        name, journal = command.command, self._session.journal
        if name not in BETWEEN_ITEMS:
            known = ", ".join(sorted(BETWEEN_ITEMS))
            self._board.failed(command.command_id, f"a run of this kind takes {known}, not {name}")
            return
        self._board.applied(command.command_id, done)
        about = {"command_id": command.command_id, "step": done}
        journal.event("control.applied", f"{name} acts after item {done}.", data=about)
        if name == "abort":
            self._session.status.write(state="aborted", intent="abort", step=done)
            self._board.close("the run was aborted")
            raise SystemExit(0)
        if self._sync is not None:
            self._sync()
        # Only after the sync: the client may rely on the items from here on.
        self._board.durable(command.command_id, self._kept)
        if name == "pause":
            journal.sync()
            self._session.status.write(state="paused", intent="pause", step=done)
            self._board.close(_PAUSED)
            raise SystemExit(0)


class ProgressReporter:
    """Reports the number of finished items to the journal and the status."""

    def __init__(
        self,
        session: JobSession,
        total: int,
        before: int = 0,
        phase: str = "embedding",
        *,
        check_commands: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._total = total
        self._before = before
        self._phase = phase
        self._check_commands = check_commands
        self._began = time.monotonic()
        if before:
            session.journal.event("items.kept", f"{before:,} of {total:,} items were done in an earlier launch.")

    def at(self, done: int) -> None:
        """Report the number of finished items; carry out commands that arrived meanwhile."""
        took_s = time.monotonic() - self._began
        made = done - self._before
        eta_s = took_s / made * (self._total - done) if made > 0 else None
        self._session.status.update(
            state="running", phase=self._phase, step=done, max_steps=self._total, eta_s=eta_s, at=time.time()
        )
        self._session.journal.progress(self._phase, step=done, max_steps=self._total, eta_s=eta_s)
        if self._check_commands is not None:
            self._check_commands(done)
