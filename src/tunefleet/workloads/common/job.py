"""What every program begins with: the job of a folder, its checked spec and the session in which it reports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import transformers

from tunefleet import trainer_control
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.spec import BaseTaskSpec, load_task_spec
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common import download_progress, job_secrets

SpecT = TypeVar("SpecT", bound=BaseTaskSpec)


@dataclass(frozen=True, slots=True)
class Opened(Generic[SpecT]):
    """One process start of a job.

    Args:
        job: What is to be done.
        spec: The same, checked.
        folder: Where.
        session: Reports, and hears commands.
    """

    job: Job
    spec: SpecT
    folder: JobFolder
    session: JobSession

    @property
    def journal(self) -> Journal:
        """Where the program reports."""
        return self.session.journal

    @property
    def workspace(self) -> Path:
        """Where archives are unpacked."""
        return self.folder.root / "inputs"


def open_task(folder: Path, wanted: type[SpecT], *, filled: bool = True) -> Opened[SpecT]:
    """Open the job of a folder."""
    session = trainer_control.open_session(folder)
    download_progress.tell(session.journal.progress)
    job = Job.model_validate(session.job)
    return Opened(job, checked(job.spec, wanted, filled=filled), JobFolder(folder), session)


def checked(written: Mapping[str, Any], wanted: type[SpecT], *, filled: bool = True) -> SpecT:
    """Return a spec as the program that runs it needs it.

    Raises:
        InputError: If it is of another kind, or this machine lacks a secret.
    """
    spec = load_task_spec(job_secrets.filled(written) if filled else written)
    if not isinstance(spec, wanted):
        raise InputError(f"A task of kind {spec.task_type!r} is no {wanted.__name__}, which this program runs.")
    return spec


# What a library will change one day is news for its users' maintainers, not for the reader of a job's log.
_NEWS: Final = r"(transformers|trl|peft|accelerate|torch|lm_eval)\b"


def libraries() -> None:
    """Let the training libraries draw no progress bars, and say warnings only, but none of what they will change."""
    # Not every job reads datasets, and the import takes a second.
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_warning()
    warnings.filterwarnings("ignore", category=FutureWarning, module=_NEWS)
