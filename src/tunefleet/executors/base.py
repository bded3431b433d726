"""What a task kind tells a worker about itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tunefleet.errors import TunefleetError
from tunefleet.wire.jobfolder import Job, JobFolder
from tunefleet.wire.link import Offer, SlotClass


class ResultError(TunefleetError):
    """A job ended well but left no readable result."""

    code = "result_missing"


@dataclass(frozen=True, slots=True)
class Output:
    """Files that a finished job leaves for the user.

    Args:
        name: Name of the artifact within the task.
        kind: What it is, such as `adapter` or `model`.
        path: A file or a folder.
    """

    name: str
    kind: str
    path: Path


class Executor(ABC):
    """One task kind. Stateless; safe to call from several threads."""

    kind: ClassVar[str]
    slot_class: ClassVar[SlotClass]
    merges: ClassVar[bool] = False
    """Whether one run computes several equal tasks: those of `Offer.merged` (`merge_children` of a job), each with an
    entry by its task id under `children` of the result. Who is missing there has failed."""

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the kind, as a sentence with the way out; `None` if it can."""
        return None


class LightExecutor(Executor):
    """A kind that runs inside the worker: no job process, no job folder, several at once."""

    slot_class: ClassVar[SlotClass] = "light"

    @abstractmethod
    def run(self, offer: Offer) -> dict[str, Any]:
        """Do the task and return its result.

        Raises:
            InputError: If what the user asked for cannot work; it is not tried again.
        """


class JobExecutor(Executor):
    """A kind that runs as a process of its own in a job folder."""

    slot_class: ClassVar[SlotClass] = "job"

    @abstractmethod
    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str]) -> Job:
        """Return what the job's process is to run.

        Args:
            offer: The attempt.
            launch: Id of the launch that is about to start.
            inputs: For each pointer into the spec, the local path that stands for it.
        """

    def processes(self, spec: Mapping[str, Any], gpus: int) -> int:
        """Return how many processes the job has.

        Args:
            spec: Of the task.
            gpus: How many GPUs it was given.
        """
        del spec, gpus  # one process has all of them
        return 1

    @abstractmethod
    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return what a job that ended well has left to upload."""

    def result(self, folder: JobFolder) -> dict[str, Any]:
        """Return the result that a job that ended well has written.

        Raises:
            ResultError: If there is none, or it cannot be read.
        """
        try:
            found = json.loads(folder.responses_json.read_bytes())
        except (OSError, ValueError) as error:
            raise ResultError(f"The job ended without a readable {folder.responses_json.name}: {error}.") from error
        if not isinstance(found, dict):
            raise ResultError(f"The job's {folder.responses_json.name} holds no JSON object.")
        return found
