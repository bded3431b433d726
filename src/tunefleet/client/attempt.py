"""Delivers journal, log and outputs of one attempt of a task, authenticated with the attempt's token.

Synchronous and thread-safe. Knows nothing of job folders or of retries over minutes: journal and log calls fail fast,
and the caller backs off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.client import transfer
from tunefleet.client.connection import Connection, normalise
from tunefleet.client.direct import DirectSender, StoreReach
from tunefleet.client.routes import chat_routes, serving_routes, workflow_routes
from tunefleet.client.throttle import Throttle
from tunefleet.client.transport import Policy, Transport
from tunefleet.schemas.api import ArtifactView
from tunefleet.schemas.chat import ChatPiece, ChatPoll, ChatTurns
from tunefleet.schemas.endpoints import FramesReceipt, RelayedRequests, RelayPoll, ResponseFrames
from tunefleet.schemas.worker_guide import ResultFile
from tunefleet.schemas.worker_link import JournalBatch


class AttemptClient:
    """Delivers journal, log and artifacts of one attempt.

    Args:
        patience_s: Seconds to retry a call while the server does not respond.
        throttle: Limits the transfer rate.
        reach: Shared knowledge of whether the server's object store is reachable.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_s: float = 2.0,
        throttle: Throttle | None = None,
        reach: StoreReach | None = None,
    ) -> None:
        policy = Policy(patience_s=patience_s)
        self._transport = Transport(Connection(normalise(url), token), policy, throttle=throttle)
        self._direct = DirectSender(self._transport.run, policy.timeout, reach or StoreReach(), throttle)

    def __enter__(self) -> AttemptClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; aborts running transfers."""
        self._direct.close()
        self._transport.close()

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        """Deliver journal records of one launch.

        Returns:
            The next sequence number that the server expects.

        Raises:
            OffsetConflict: If earlier records are missing; `cursor` is the first of them.
            AuthError: If the token was revoked: another worker has the attempt.
            UnreachableError: If the server does not respond.
        """
        return self._transport.run(workflow_routes.put_journal(task_id, batch)).cursor

    def log(self, task_id: str, offset: int, data: bytes) -> int:
        """Deliver a part of the attempt's log; returns the next offset, raises as `journal` does."""
        return self._transport.run(workflow_routes.put_log(task_id, offset, data)).cursor

    def push_artifact(
        self,
        task_id: str,
        name: str,
        kind: str,
        path: Path,
        metadata: Mapping[str, Any] | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> ArtifactView:
        """Upload a file or folder as an output of the task; repeating it costs only the hashing.

        Args:
            path: The file or folder.
            metadata: JSON metadata of the artifact.
            expected: Relative path → digest; uploads exactly these files.

        Raises:
            NotFoundError: If `path` does not exist.
            ArtifactError: If a file does not match `expected`, or changes while it is read.
            UnreachableError: If the server does not respond; the next try resumes the upload.
        """
        return self._transport.run(
            transfer.deliver(
                path, name, kind, task_id=task_id, metadata=metadata, expected=expected, direct=self._direct
            )
        )

    def fetch_artifact(
        self, digest: str, dest: Path, *, on_progress: transfer.OnProgress = transfer.ignore_progress
    ) -> Path:
        """Download an input of the task into `dest`.

        Returns:
            The file if the artifact is a single file, else `dest`.

        Raises:
            ArtifactError: If the download does not match its digest.
        """
        return self._transport.run(transfer.fetch(digest, dest, on_progress=on_progress))

    def chat_turns(self, task_id: str, poll: ChatPoll) -> ChatTurns:
        """Poll for the turns of a chat, for as long as `poll` sets.

        Raises:
            AuthError: If the token was revoked.
            UnreachableError: If the server does not respond.
        """
        return self._transport.run(chat_routes.fetch_turns(task_id, poll))

    def chat_piece(self, task_id: str, turn_id: str, piece: ChatPiece) -> bool:
        """Send a piece of an answer; returns whether the client is still connected, raises as `chat_turns` does."""
        return not self._transport.run(chat_routes.tell_piece(task_id, turn_id, piece)).gone

    def endpoint_requests(self, task_id: str, poll: RelayPoll) -> RelayedRequests:
        """Poll for the requests of an endpoint, for as long as `poll` sets; raises as `chat_turns` does."""
        return self._transport.run(serving_routes.fetch_requests(task_id, poll))

    def endpoint_frames(self, task_id: str, frames: ResponseFrames) -> FramesReceipt:
        """Send parts of responses; raises as `chat_turns` does."""
        return self._transport.run(serving_routes.send_frames(task_id, frames))

    def result_files(self, task_id: str) -> tuple[ResultFile, ...]:
        """List the files of the task, or of one that it reads, each with a signed link.

        Raises:
            NotFoundError: If the task does not exist.
            ForbiddenError: If the attempt does not read that task.
        """
        return self._transport.run(workflow_routes.result_files(task_id)).files

    def fetch_result_file(
        self,
        task_id: str,
        file: ResultFile,
        dest: Path,
        *,
        on_progress: transfer.OnProgress = transfer.ignore_progress,
    ) -> None:
        """Download one of these files to `dest`; resumes an interrupted download.

        Raises:
            ArtifactError: If what arrives does not match its digest.
            UnreachableError: If the server does not respond.
        """
        self._transport.run(transfer.fetch_result_file(task_id, file, dest, on_progress=on_progress))
