"""What an attempt needs from others: the supervisor of job processes, the shipper, the server's file store.

`tunefleet.runtime` and `tunefleet.client.attempt` fit these by shape; tests bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunefleet.client.transfer import OnProgress, ignore_progress
from tunefleet.runtime.monitor.guard import End
from tunefleet.schemas.chat import ChatPiece, ChatPoll, ChatTurns
from tunefleet.schemas.compat.task_results import ResultFile
from tunefleet.schemas.control import CommandState, ControlReply
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.schemas.worker_link import JournalBatch


class Handle(Protocol):
    """A job that was launched or found again."""

    @property
    def job(self) -> Job:
        """What it runs."""

    @property
    def folder(self) -> JobFolder:
        """Where it runs."""

    def poll(self) -> End | None:
        """Return how it ended, or `None` while it lives."""

    def cancel(self, grace_s: float) -> None:
        """Begin to end it: abort at a step's end, after the grace SIGTERM, then SIGKILL. Does not wait."""

    def kill(self) -> None:
        """End it at once, without a word. Does not wait."""

    def status(self) -> JobStatus | None:
        """Return what the trainer last wrote about itself."""

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a control command to the live job."""

    def command_state(self, command_id: str) -> CommandState:
        """Return what became of a command."""

    def acknowledge(self) -> None:
        """Note that the end was read, so that nobody adopts the job any more."""


class Jobs(Protocol):
    """The supervisor of this machine's job processes."""

    def launch(self, job: Job) -> Handle:
        """Start a job."""

    def adopt(self) -> Sequence[Handle]:
        """Find the jobs that still live, or whose end nobody has read."""

    def close(self) -> None:
        """Let go; jobs live on."""


class Shipper(Protocol):
    """Delivers journal and log of one job folder from where it was left."""

    def start(self) -> None:
        """Begin to deliver."""

    def stop(self) -> None:
        """Stop delivering; what is left stays for the next time."""

    def flush(self, timeout_s: float) -> bool:
        """Deliver what is there now; `False` if not all of it arrived in time."""

    @property
    def cursors(self) -> Mapping[str, int]:
        """For each launch the sequence number after its last delivered record."""


class Sink(Protocol):
    """Where a shipper delivers to."""

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Deliver records; returns the receiver's cursor."""

    def log(self, offset: int, data: bytes) -> int:
        """Deliver a piece of the log; returns the receiver's cursor."""


class Delivery(Protocol):
    """The server's side of one attempt: `client.attempt.AttemptClient`."""

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        """Deliver records of one launch."""

    def log(self, task_id: str, offset: int, data: bytes) -> int:
        """Deliver a piece of the log."""

    def push_artifact(
        self,
        task_id: str,
        name: str,
        kind: str,
        path: Path,
        metadata: Mapping[str, Any] | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> object:
        """Upload an output; of a folder only the expected files, if they have the digests that are given."""

    def fetch_artifact(self, digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        """Download an input."""

    def result_files(self, task_id: str) -> Sequence[ResultFile]:
        """List the files of the task, or of one that it reads."""

    def fetch_result_file(
        self, task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Download one of them."""

    def chat_turns(self, task_id: str, poll: ChatPoll) -> ChatTurns:
        """Ask for the turns of a chat."""

    def chat_piece(self, task_id: str, turn_id: str, piece: ChatPiece) -> bool:
        """Tell a piece of an answer; returns whether anybody still listens."""

    def close(self) -> None:
        """Close the connections."""


ShipperFactory = Callable[[JobFolder, Sink], Shipper]
DeliveryFactory = Callable[[str], Delivery]
"""From an attempt's token."""
