"""The agent's record of a job: `agent.json` in its folder, mode 0600, written before each state is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.schemas.base import Message
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.training_protocol.training import JobState
from tunefleet.schemas.worker_link import ResumeFrom
from tunefleet.trainer_control.files import make_private, read_json, write_json
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

_NAME = "agent.json"


class AgentRecord(Message):
    """One job of this agent.

    Args:
        order: Position in the queue: seconds since the epoch.
        from_step: The checkpoint to resume from; the newest complete one if None.
        refused: Reports that the backend rejects permanently: kind → count.
    """

    job_id: str
    name: str
    user_id: str = ""
    kind: str
    spec: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    addresses: dict[str, str] = Field(default_factory=dict)
    digests: dict[str, dict[str, str]] = Field(default_factory=dict)
    attempt: int = 1
    state: JobState = JobState.PENDING
    wish: Literal["pause", "cancel"] | None = None
    wishes: int = 0
    order: float
    started_at: float | None = None
    completed_at: float | None = None
    checkpoint: str | None = None
    from_step: int | None = None
    resume: ResumeFrom | None = None
    launch: str | None = None
    error: str | None = None
    detail: str | None = None
    warnings: tuple[str, ...] = ()
    backend: str | None = None
    token: str | None = Field(default=None, repr=False)
    told: JobState | None = None
    muted: str | None = None
    refused: dict[str, int] = Field(default_factory=dict)
    polled: bool = False
    delivers: bool = False
    traceparent: str | None = None
    asked_by: str | None = None
    watched: Watched = Watched()

    @property
    def loss_is_of_tokens(self) -> bool:
        """Whether its loss is a mean over tokens rather than a preference loss."""
        return self.kind in {"sft", "lora_sft"}

    @property
    def pause_id(self) -> str:
        """Id of the control command for the pause."""
        return f"pause-{self.launch}-{self.wishes}"


def keep(folder: JobFolder, record: AgentRecord) -> None:
    """Write a record to disk, with fsync.

    Raises:
        OSError: If the folder cannot be written.
    """
    make_private(folder.root)
    write_json(folder.root / _NAME, record.model_dump(mode="json"), mode=0o600, sync=True)


def find(jobs_dir: Path) -> Iterator[AgentRecord]:
    """Yield the records of all job folders; an unreadable one is logged and skipped."""
    for path in sorted(jobs_dir.glob(f"*/{_NAME}")):
        try:
            yield AgentRecord.model_validate(read_json(path) or {})
        except ValidationError as error:
            logger.warning("Skipping the job in %s, its %s cannot be read: %s", path.parent, _NAME, summary(error))
