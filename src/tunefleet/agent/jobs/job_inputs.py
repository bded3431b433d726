"""Inputs of a job before its process starts: downloads, artifacts, the checkpoint to resume from.

Each input is stored in the record once it is complete, so that a restart fetches nothing twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.client.external.interrupt import interruptibly
from tunefleet.errors import InputError
from tunefleet.schemas.worker_link import ResumeFrom

_LOOK_S: Final = 0.1


def prepare(agent_context: AgentContext, job: AgentJob, check_cancel: Callable[[], None]) -> None:
    """Fetch all inputs.

    Raises:
        TunefleetError: If an input is not available.
    """
    _Preparation(agent_context, job, check_cancel).run()


class _Preparation:
    def __init__(self, agent_context: AgentContext, job: AgentJob, check_cancel: Callable[[], None]) -> None:
        self._context = agent_context
        self._job = job
        self._check_cancel = check_cancel

    def run(self) -> None:
        """Fetch everything that the record does not list yet."""
        job = self._job
        for pointer, address in job.record.addresses.items():
            if pointer in job.record.inputs:
                continue
            self._check_cancel()
            job.phase = "downloading"
            path = interruptibly(partial(self._context.fetch, address), self._look)
            job.note(inputs={**job.record.inputs, pointer: str(path)})
        for pointer, ref in job.record.digests.items():
            if pointer not in job.record.inputs:
                self._check_cancel()
                job.phase = "downloading"
                job.note(inputs={**job.record.inputs, pointer: str(self._artifact(ref))})
        if job.record.checkpoint is not None:
            source = Path(job.record.checkpoint)
            self._bring(source, source.name)
            job.note(checkpoint=None, from_step=int(source.name.rpartition("-")[2]))
        if job.record.resume is not None:
            job.note(resume=None, from_step=self._restore(job.record.resume))
        self._check_cancel()

    def _look(self) -> None:
        self._check_cancel()
        time.sleep(_LOOK_S)

    def _bring(self, source: Path, name: str) -> None:
        """Copy a checkpoint into the job folder, atomically."""
        dest = self._job.folder.checkpoints_dir / name
        if not dest.exists():
            part = dest.with_name(f".{name}.partial")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part)
            part.replace(dest)

    def _restore(self, resume: ResumeFrom) -> int | None:
        """Make the checkpoint available that the server resumes from; return its step if exactly that is required."""
        step = resume.step
        saved = self._job.checkpoints()
        if step is None or step in saved or (not resume.exact and any(other > step for other in saved)):
            return step if resume.exact else None
        if resume.checkpoint is None:
            if resume.exact:
                raise InputError(
                    f"The checkpoint of step {step} is not available.",
                    hint="Resume from another step, or retry the job from the beginning.",
                )
            self._job.add_warning(f"The checkpoint of step {step} is not available; using a local one.")
            return None
        source = self._artifact({"digest": resume.checkpoint.digest, "name": resume.checkpoint.name})
        checkpoint = source if (source / "manifest.json").is_file() else next(source.glob("checkpoint-*"), source)
        self._bring(checkpoint, f"checkpoint-{step}")
        return step if resume.exact else None

    def _artifact(self, ref: dict[str, str]) -> Path:
        record = self._job.record
        if record.backend is None or record.token is None:
            raise InputError(
                f"Cannot fetch {ref.get('name', 'an input')}: no backend is set.", hint="Set TUNEFLEET_BACKEND_URL."
            )
        return self._context.backend(record.backend, record.token).fetch_input(
            ref, self._context.settings.datasets_dir.expanduser().absolute() / ".inputs"
        )
