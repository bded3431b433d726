"""What a task kind tells a worker about itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tunefleet import errors
from tunefleet.client.external.interrupt import Stop
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.runtime import envs
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.schemas.worker_link import Offer, SlotClass


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
    heeds: ClassVar[frozenset[ControlCommand]] = frozenset()
    """Commands that its jobs take, such as a pause; any other is refused when it is asked for. By default none: a
    cancel needs nobody to listen. `TRAINING_COMMANDS` if a Trainer with `trainer_control.callbacks_for_job` trains in
    the program, `BETWEEN_ITEMS` if it goes through items within `workloads.common.item_control.Heeding` (both of
    `schemas.control`)."""

    brings_code: ClassVar[bool] = False
    """Whether every task of the kind runs code that comes with the document: only a worker with `--allow-code` does."""

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the kind, as a sentence with the way out; `None` if it can."""
        return None

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return what only some tasks of the kind ask for (`BaseTaskSpec.features`): name → why it is not here.

        Args:
            environment: The variables that its jobs get.

        Returns:
            A sentence with the way out for what is not here; `None` for what is. Of a name that is left out nothing is
            here.
        """
        del environment  # of this kind all tasks ask for the same
        return {}


class LightExecutor(Executor):
    """A kind that runs inside the worker: no job process, no job folder, several at once."""

    slot_class: ClassVar[SlotClass] = "light"

    @abstractmethod
    def run(self, offer: Offer) -> dict[str, Any]:
        """Do the task and return its result.

        Raises:
            InputError: If what the user asked for cannot work; it is not tried again.
        """

    def run_until(self, offer: Offer, stop: Stop) -> dict[str, Any]:
        """Do the task, unless nobody wants its result any more. Override it where the work can be ended early.

        Args:
            stop: Set by a cancel.

        Raises:
            Stopped: If it was ended early.
        """
        del stop  # by default it is done to its end
        return self.run(offer)


class JobExecutor(Executor):
    """A kind that runs as a process of its own in a job folder."""

    slot_class: ClassVar[SlotClass] = "job"
    program: ClassVar[str]
    """`package.module:function`, called with the path of the job folder."""
    environment: ClassVar[str | None] = None
    """The environment (`tunefleet env`) that each job of the kind runs in; `None` for the one of Tunefleet itself."""
    engine: ClassVar[bool] = False
    """Whether its jobs ask the warm engine of their GPUs, so that it need not end for them."""

    talks: ClassVar[bool] = False
    """Whether people talk with its jobs; the worker brings them the turns (`runtime.conversation`)."""

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the kind: here, that its environment is not ready."""
        return None if self.environment is None else envs.reason(self.environment)

    def environment_for(self, spec: Mapping[str, Any]) -> str | None:
        """Return the name of the environment that a job runs in; `None` for the one that Tunefleet runs in."""
        del spec  # of this kind all run in the same
        return self.environment

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str], gpus: Sequence[str] = ()) -> Job:
        """Return what the job's processes are to run.

        Args:
            launch: Id of the launch that is about to start.
            inputs: For each pointer into the spec, the local path that stands for it.
            gpus: UUIDs of the GPUs that it was given.

        Raises:
            MachineError: If the environment that it needs is not ready.
        """
        return Job(
            job_id=offer.task_id,
            task_id=offer.task_id,
            attempt=offer.attempt,
            launch=launch,
            kind=offer.kind,
            name=offer.name,
            program=self.program_of(offer.spec),
            spec=offer.spec,
            inputs=dict(inputs),
            gpus=tuple(gpus),
            processes=self.processes(offer.spec, len(gpus)),
            engine=self.engine,
            python=_interpreter(self.environment_for(offer.spec)),
            project=offer.project,
        )

    def program_of(self, spec: Mapping[str, Any]) -> str:
        """Return the program that a job runs."""
        del spec  # of this kind all run the same
        return self.program

    def processes(self, spec: Mapping[str, Any], gpus: int) -> int:
        """Return how many processes the job has.

        Args:
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


def _interpreter(environment: str | None) -> str | None:
    if environment is None:
        return None
    reason = envs.reason(environment)
    if reason is not None:
        raise MachineError(reason)
    return envs.at(environment).python


def missing(*names: str, extra: str, what: str = "The libraries that it needs") -> str | None:
    """Return why a kind cannot run here, with the way out; `None` if all packages are installed.

    Args:
        names: Top-level packages.
        extra: Of Tunefleet, which installs them.
        what: What the packages are, as the sentence begins.
    """
    absent = [name for name in names if find_spec(name) is None]
    if not absent:
        return None
    return f"{what} are not installed ({', '.join(absent)} missing): {errors.install(extra)}"
