"""Protocols that an attempt depends on: job supervisor, journal shipper, the server's file store.

`tunefleet.runtime` and `tunefleet.client.attempt` implement them structurally; tests use fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunefleet.client.transfer import OnProgress, ignore_progress
from tunefleet.runtime.monitor.guard import End
from tunefleet.schemas.chat import ChatPiece, ChatPoll, ChatTurns
from tunefleet.schemas.control import CommandState, ControlReply
from tunefleet.schemas.endpoints import FramesReceipt, RelayedRequests, RelayPoll, ResponseFrames
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.schemas.worker_guide import ResultFile
from tunefleet.schemas.worker_link import JournalBatch


class Handle(Protocol):
    """A job that was launched or adopted."""

    @property
    def job(self) -> Job:
        """The job that it runs."""

    @property
    def folder(self) -> JobFolder:
        """Its job folder."""

    def poll(self) -> End | None:
        """Return how it ended, or None while it runs."""

    def cancel(self, grace_s: float) -> None:
        """Start ending it: abort at the end of a step, SIGTERM after the grace period, then SIGKILL. Does not wait."""

    def kill(self) -> None:
        """End it immediately with SIGKILL. Does not wait."""

    def status(self) -> JobStatus | None:
        """Return the last status that the trainer wrote."""

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a control command to the running job."""

    def command_state(self, command_id: str) -> CommandState:
        """Return the state of a command."""

    def acknowledge(self) -> None:
        """Record that the end was read, so that the job is not adopted again."""


class Jobs(Protocol):
    """The supervisor of this machine's job processes."""

    def launch(self, job: Job) -> Handle:
        """Start a job."""

    def adopt(self) -> Sequence[Handle]:
        """Find the jobs that still run, or whose end was not read."""

    def close(self) -> None:
        """Detach; jobs keep running."""


class Shipper(Protocol):
    """Delivers journal and log of one job folder, resuming at the last cursor."""

    def start(self) -> None:
        """Start delivering."""

    def stop(self) -> None:
        """Stop delivering; the remainder stays for the next start."""

    def flush(self, timeout_s: float) -> bool:
        """Deliver everything written so far; False if not all of it arrived in time."""

    @property
    def cursors(self) -> Mapping[str, int]:
        """Launch → sequence number after its last delivered record."""


class Sink(Protocol):
    """Receiver of a shipper."""

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Deliver records and return the receiver's cursor."""

    def log(self, offset: int, data: bytes) -> int:
        """Deliver a chunk of the log and return the receiver's cursor."""


class Delivery(Protocol):
    """The server's side of one attempt: `client.attempt.AttemptClient`."""

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        """Deliver records of one launch."""

    def log(self, task_id: str, offset: int, data: bytes) -> int:
        """Deliver a chunk of the log."""

    def push_artifact(
        self,
        task_id: str,
        name: str,
        kind: str,
        path: Path,
        metadata: Mapping[str, Any] | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> object:
        """Upload an output; of a folder only the expected files, if their digests match."""

    def fetch_artifact(self, digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        """Download an input."""

    def result_files(self, task_id: str) -> Sequence[ResultFile]:
        """List the files of the task, or of a task that it reads."""

    def fetch_result_file(
        self, task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Download one of these files."""

    def chat_turns(self, task_id: str, poll: ChatPoll) -> ChatTurns:
        """Poll for the turns of a chat."""

    def chat_piece(self, task_id: str, turn_id: str, piece: ChatPiece) -> bool:
        """Send a chunk of an answer; returns whether the client is still connected."""

    def endpoint_requests(self, task_id: str, poll: RelayPoll) -> RelayedRequests:
        """Poll for the requests of an endpoint."""

    def endpoint_frames(self, task_id: str, frames: ResponseFrames) -> FramesReceipt:
        """Send parts of responses."""

    def close(self) -> None:
        """Close the connections."""


ShipperFactory = Callable[[JobFolder, Sink], Shipper]
# The argument is the attempt's token.
DeliveryFactory = Callable[[str], Delivery]
