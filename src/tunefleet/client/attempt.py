"""What a worker delivers for one attempt of a task, with the attempt's token as its key.

Synchronous and safe to share between threads. Knows nothing of job folders or of retries over minutes: journal and
log calls fail fast, and the shipper that calls them backs off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.client import transfer
from tunefleet.client.connection import Connection, normalise
from tunefleet.client.direct import DirectSender, StoreReach
from tunefleet.client.routes import chat_routes, workflow_routes
from tunefleet.client.throttle import Throttle
from tunefleet.client.transport import Policy, Transport
from tunefleet.schemas.api import ArtifactView
from tunefleet.schemas.chat import ChatPiece, ChatPoll, ChatTurns
from tunefleet.schemas.compat.task_results import ResultFile
from tunefleet.schemas.worker_link import JournalBatch


class AttemptClient:
    """Delivers journal, log and artifacts of one attempt.

    Args:
        patience_s: How long a call is tried again while the server does not answer.
        throttle: Holds what is sent and fetched to a speed.
        reach: What this process knows of the way to the server's object store.
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
        """Close the connections; what is on its way is given up."""
        self._direct.close()
        self._transport.close()

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        """Deliver records of one launch.

        Returns:
            The next sequence number that the server takes.

        Raises:
            OffsetConflict: If records before these are missing; `cursor` says from where.
            AuthError: If the token is void: the attempt was given to another worker.
            UnreachableError: If the server does not answer.
        """
        return self._transport.run(workflow_routes.put_journal(task_id, batch)).cursor

    def log(self, task_id: str, offset: int, data: bytes) -> int:
        """Deliver a piece of the attempt's log; returns the next offset, raises as `journal` does."""
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
        """Upload a file or folder as an output of the task; a repeat costs nothing but the hashing.

        Args:
            path: The file or folder.
            metadata: Anything JSON that is to stay with it.
            expected: Paths within the folder and the digest of each: these files go and no others.

        Raises:
            NotFoundError: If there is nothing at `path`.
            ArtifactError: If a file is not as expected, or changes while it is read.
            UnreachableError: If the server does not answer; what arrived is kept for the next try.
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
            The file, if the artifact was pushed as a single file, else `dest`.

        Raises:
            ArtifactError: If what arrives does not match its digest.
        """
        return self._transport.run(transfer.fetch(digest, dest, on_progress=on_progress))

    def chat_turns(self, task_id: str, poll: ChatPoll) -> ChatTurns:
        """Ask for the turns of a chat; the answer is held for as long as `poll` says.

        Raises:
            AuthError: If the token is void.
            UnreachableError: If the server does not answer.
        """
        return self._transport.run(chat_routes.fetch_turns(task_id, poll))

    def chat_piece(self, task_id: str, turn_id: str, piece: ChatPiece) -> bool:
        """Tell a piece of an answer; returns whether anybody still listens, raises as `chat_turns` does."""
        return not self._transport.run(chat_routes.tell_piece(task_id, turn_id, piece)).gone

    def result_files(self, task_id: str) -> tuple[ResultFile, ...]:
        """List the files of the task, or of one that it reads, each with a link.

        Raises:
            NotFoundError: If there is no such task.
            ForbiddenError: If the attempt has nothing to do with it.
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
        """Download one of those files to `dest`; goes on where an earlier call was cut.

        Raises:
            ArtifactError: If what arrives does not match its digest.
            UnreachableError: If the server does not answer.
        """
        self._transport.run(transfer.fetch_result_file(task_id, file, dest, on_progress=on_progress))
