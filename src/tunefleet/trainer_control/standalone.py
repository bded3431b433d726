"""The endpoint of an unmanaged training run, from the construction of the Trainer to the end of the process."""

from __future__ import annotations

import itertools
import logging
import os
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoints.manifest import MANIFEST
from .control.command_queue import CommandQueue
from .control.control_server import ControlServer
from .control.discovery import claim, jobs_dir, sanitized_job_id
from .control.file_channel import FileChannel
from .diagnostics import kind_of, watch
from .distributed import world
from .files import make_private, read_json
from .journal.null import Journal, NullJournal
from .journal.status import StatusFile
from .journal.writer import JournalWriter
from .session import JobSession

logger = logging.getLogger("tunefleet.control")


@dataclass(frozen=True)
class StandaloneOptions:
    """The arguments of `TrainerControlCallback`."""

    job_id: str | None = None
    port: int | None = None
    host: str = "localhost"
    enable_http: bool = True
    cleanup_on_exit: bool = True
    token: str | None = "auto"
    journal: bool | str | os.PathLike[str] = False


@dataclass(eq=False)
class StandaloneJob:
    """The endpoint of one training run, from its construction to the end of the process.

    Args:
        board: The command queue.
        status: The status file; in the job folder if a journal is kept, with a copy in the endpoint folder.
        folder: The job folder, if a journal is kept; else the endpoint folder.
    """

    job_id: str
    board: CommandQueue
    status: StatusFile
    folder: Path
    options: StandaloneOptions
    server: ControlServer
    files: FileChannel | None = None
    session: JobSession | None = None
    _training: bool = field(default=False)
    _ended: bool = field(default=False)

    @classmethod
    def open(cls, options: StandaloneOptions) -> StandaloneJob:
        """Make the job discoverable and take commands for it.

        Raises:
            OSError: If its folders cannot be written.
        """
        wanted = sanitized_job_id(options.job_id)
        endpoint = claim(jobs_dir(), wanted)
        folder = _job_folder(options.journal, endpoint.job_id)
        endpoint.job_folder = folder
        mirrors = [endpoint.status_copy] if folder else []
        status = StatusFile(folder or endpoint.path, mirrors)
        board = CommandQueue(endpoint.path)
        server = ControlServer(
            endpoint.job_id,
            board,
            status,
            endpoint,
            host=options.host,
            port=options.port or 0,
            token=options.token,
        )
        job = cls(endpoint.job_id, board, status, folder or endpoint.path, options, server)
        status.write(state="starting", phase="loading")
        job._listen(endpoint)
        watch(job)
        return job

    def begin(self, step: int, output_dir: str | None) -> JobSession:
        """Record that a training run begins, and return the session of its callbacks."""
        self.status.begin_again()
        self._training = True
        if self.session is None:
            # Opened at the first training run: only now is it known which checkpoint is resumed.
            journal = self._journal(step, output_dir)
            job = {"job_id": self.job_id, "endpoint_dir": None}
            self.session = JobSession(self.folder, job, journal, self.status, None, itertools.count(1))
        return self.session

    def end(self) -> None:
        """Record that the training run ended normally."""
        self._training = False
        if self.session is not None:
            self.session.finish()

    def on_exception(self, error: BaseException) -> None:
        """Record that the script ends with an exception, if its training run had not ended."""
        if not self._training or isinstance(error, SystemExit):
            return
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._fail(message, kind_of(error), text)

    def on_exit(self) -> None:
        """Close everything; the status and the command outcomes stay readable."""
        # A forked child runs the exit hooks, too, and must not end the job of its parent.
        if self._ended or os.getpid() != self.status.fields["pid"]:
            return
        self._ended = True
        if self._training and not self.status.final:
            # No exception reached the top, yet the run did not end: `sys.exit`, or an error that the script caught.
            self._fail("The process ended before its training did.", "bug", None)
        self.board.close("the process had ended")
        if self.files is not None:
            self.files.stop()
        if self.session is not None:
            self.session.close()
        # Last: a client may still read the outcome of its command until here.
        self._retire()

    def _listen(self, endpoint: Any) -> None:
        if self.options.enable_http:
            try:
                self.server.start()
                return
            except OSError as error:
                logger.warning("Port %s cannot be opened (%s); using command files instead", self.options.port, error)
        endpoint.publish(host=self.options.host, port=0, token=None)
        self.files = FileChannel(endpoint.path, self.board)
        self.files.start()

    def _journal(self, step: int, output_dir: str | None) -> Journal:
        if not self.options.journal:
            return NullJournal(self.status.flush_if_due)
        manifest = read_json(Path(output_dir or ".", f"checkpoint-{step}", MANIFEST)) if step else None
        digest, parent = (manifest.get("digest"), manifest.get("launch")) if manifest else (None, None)
        launch = f"launch-{uuid.uuid4().hex[:12]}"
        return JournalWriter(self.folder, launch, 0, step, digest, parent=parent, on_tick=self.status.flush_if_due)

    def _fail(self, message: str, kind: str, text: str | None) -> None:
        logger.debug("The training run failed: %s", message)
        try:
            if self.session is not None:
                self.session.journal.event("training.failed", message, "error")
                self.session.fail(message, kind, text)
            else:
                self.status.fail(message, kind, text)
        except OSError as fault:
            logger.warning("The failure could not be recorded: %s", fault)

    def _retire(self) -> None:
        try:
            self.status.flush()
            self.server.stop(withdraw=False)
            self.server.folder.retire(keep_endpoint=not self.options.cleanup_on_exit)
        except OSError as fault:
            logger.warning("The endpoint could not be cleaned up: %s", fault)


def null_session() -> JobSession:
    """Return a session that writes nothing: for ranks other than 0, and where no folder can be written."""
    journal, status = NullJournal(log_events=False), StatusFile(None)
    return JobSession(Path(), {}, journal, status, None, itertools.count(1), rank=world.rank())


def _job_folder(journal: bool | str | os.PathLike[str], job_id: str) -> Path | None:
    if journal is False or journal is None:
        return None
    if journal is True:
        folder = Path("tunefleet-runs", job_id)
        make_private(folder)
    else:
        folder = Path(journal)
        # An existing folder of the caller keeps its permissions.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()
