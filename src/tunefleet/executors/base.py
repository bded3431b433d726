"""Base classes of executors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from tunefleet import errors
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.runtime import envs
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.schemas.worker_link import Offer, SlotClass

# Class attributes under their former names, which executors of other packages may still set or read.
_FORMER_NAMES: Final = {"heeds": "supported_commands", "talks": "serves_chat"}


class ResultError(TunefleetError):
    """A job completed but left no readable result."""

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
    """Whether one run can compute several similar tasks: those of `Offer.merged` (`merge_children` of a job), each with
    an entry by its task id under `children` of the result. A task without an entry fails."""
    supported_commands: ClassVar[frozenset[ControlCommand]] = frozenset()
    """Commands that its jobs support, such as a pause; others are rejected. None by default: a cancel needs no support
    by the program. From `schemas.control`: `TRAINING_COMMANDS` if the program runs a Trainer with
    `trainer_control.callbacks_for_job`, `BETWEEN_ITEMS` if it processes items within
    `workloads.common.item_control.ItemControl`."""

    brings_code: ClassVar[bool] = False
    """Whether every task of the kind runs custom code of the workflow file, which requires a worker with
    `--allow-code`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept the former names of attributes."""
        super().__init_subclass__(**options)
        for former, name in _FORMER_NAMES.items():
            if former in vars(cls) and name not in vars(cls):
                setattr(cls, name, getattr(cls, former))
            elif hasattr(cls, name):
                setattr(cls, former, getattr(cls, name))

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the kind, with a hint how to fix it; None if it can."""
        return None

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return features that only some tasks of the kind need (`BaseTaskSpec.features`): name → why it is missing.

        Args:
            environment: Environment variables of its jobs.

        Returns:
            The reason with a hint how to fix it for a missing feature; None for an available one. A name that is not
            included is not available.
        """
        del environment  # no optional features by default
        return {}


class LightExecutor(Executor):
    """A kind that runs inside the worker: no job process, no job folder, several tasks in parallel."""

    slot_class: ClassVar[SlotClass] = "light"

    @abstractmethod
    def run(self, offer: Offer) -> dict[str, Any]:
        """Run the task and return its result.

        Raises:
            InputError: If the task is invalid; it is not retried.
        """

    def run_until(self, offer: Offer, stop: CancelToken) -> dict[str, Any]:
        """Run the task until a cancel. Override this if the work can be stopped early.

        Args:
            stop: Set by a cancel.

        Raises:
            Stopped: If it was stopped early.
        """
        del stop  # by default it runs to its end
        return self.run(offer)


class JobExecutor(Executor):
    """A kind that runs as a separate process in a job folder."""

    slot_class: ClassVar[SlotClass] = "job"
    program: ClassVar[str]
    """`package.module:function`, called with the path of the job folder."""
    environment: ClassVar[str | None] = None
    """The environment (`tunefleet env`) of the kind's jobs; None for Tunefleet's own environment."""
    engine: ClassVar[bool] = False
    """Whether its jobs use the warm engine of their GPUs, so that the engine is not stopped for them."""

    serves_chat: ClassVar[bool] = False
    """Whether its jobs are chats; the worker relays the turns (`runtime.chat_channel`)."""
    serves_http: ClassVar[bool] = False
    """Whether its jobs are HTTP servers; the worker relays the requests to `runtime.chat_channel.http_socket`."""

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the kind; by default, whether its environment is not ready."""
        return None if self.environment is None else envs.reason(self.environment)

    def environment_for(self, spec: Mapping[str, Any]) -> str | None:
        """Return the name of the environment of a job; None for Tunefleet's own environment."""
        del spec  # the same for all jobs by default
        return self.environment

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str], gpus: Sequence[str] = ()) -> Job:
        """Return the job to launch.

        Args:
            launch: Id of the launch.
            inputs: Pointer into the spec → local path.
            gpus: UUIDs of the allocated GPUs.

        Raises:
            MachineError: If its environment is not ready.
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
        """Return the program of a job."""
        del spec  # the same for all jobs by default
        return self.program

    def processes(self, spec: Mapping[str, Any], gpus: int) -> int:
        """Return the number of processes of a job.

        Args:
            gpus: Number of allocated GPUs.
        """
        del spec, gpus  # by default one process uses all GPUs
        return 1

    @abstractmethod
    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the files of a completed job to upload."""

    def result(self, folder: JobFolder) -> dict[str, Any]:
        """Return the result of a completed job.

        Raises:
            ResultError: If it is missing or unreadable.
        """
        try:
            result = json.loads(folder.responses_json.read_bytes())
        except (OSError, ValueError) as error:
            raise ResultError(f"The job ended without a readable {folder.responses_json.name}: {error}.") from error
        if not isinstance(result, dict):
            raise ResultError(f"The job's {folder.responses_json.name} is not a JSON object.")
        return result


def _interpreter(environment: str | None) -> str | None:
    if environment is None:
        return None
    reason = envs.reason(environment)
    if reason is not None:
        raise MachineError(reason)
    return envs.at(environment).python


def missing(*names: str, extra: str, what: str = "The libraries that it needs") -> str | None:
    """Return which packages are missing, with the install command; None if all are installed.

    Args:
        names: Top-level packages.
        extra: The extra of Tunefleet that installs them.
        what: Description of the packages, the start of the message.
    """
    # find_spec, not import: importing torch takes seconds and gigabytes that the worker does not need.
    absent = [name for name in names if find_spec(name) is None]
    if not absent:
        return None
    return f"{what} are not installed ({', '.join(absent)} missing): {errors.install_command(extra)}"
