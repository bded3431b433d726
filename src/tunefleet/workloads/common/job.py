"""Opens the job of a folder: its validated spec, and the session that it reports to."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from tunefleet import trainer_control
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.spec import BaseTaskSpec, load_task_spec
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common import job_secrets

SpecT = TypeVar("SpecT", bound=BaseTaskSpec)
# Deprecation notices of libraries are for maintainers, not for readers of a job's log.
_DEPRECATIONS: Final = r"(transformers|trl|peft|accelerate|torch|lm_eval)\b"


@dataclass(frozen=True, slots=True)
class OpenedJob(Generic[SpecT]):
    """One process start of a job.

    Args:
        spec: The validated spec of `job`.
        session: Reports progress and receives commands.
    """

    job: Job
    spec: SpecT
    folder: JobFolder
    session: JobSession

    @property
    def journal(self) -> Journal:
        """The journal that the program reports to."""
        return self.session.journal

    @property
    def workspace(self) -> Path:
        """The folder for unpacked archives."""
        return self.folder.root / "inputs"


def open_task(folder: Path, wanted: type[SpecT], *, filled: bool = True) -> OpenedJob[SpecT]:
    """Open the job of a folder."""
    session = trainer_control.open_session(folder)
    # Some kinds run where the Hub's client is not installed.
    if find_spec("huggingface_hub") is not None:
        from tunefleet.workloads.common import hub_files

        hub_files.report_downloads_to(session.journal.progress)
    job = Job.model_validate(session.job)
    return OpenedJob(job, checked(job.spec, wanted, filled=filled), JobFolder(folder), session)


def checked(written: Mapping[str, Any], wanted: type[SpecT], *, filled: bool = True) -> SpecT:
    """Validate a spec as the class that a program needs, with secrets filled in.

    Raises:
        InputError: If it has another task type, or this machine lacks a secret.
    """
    spec = load_task_spec(job_secrets.filled(written) if filled else written)
    if not isinstance(spec, wanted):
        raise InputError(f"This program runs {wanted.__name__}, not tasks of kind {spec.task_type!r}.")
    return spec


def quiet_libraries() -> None:
    """Disable progress bars of the training libraries, and log only warnings without deprecation notices."""
    import transformers

    # Not imported here: not every job uses datasets, and the import takes a second.
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_warning()
    warnings.filterwarnings("ignore", category=FutureWarning, module=_DEPRECATIONS)
