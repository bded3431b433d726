"""What a job needs before its process starts: downloads, artifacts, the checkpoint that it goes on from.

Each piece is in the record once it is here, so that a restart fetches nothing twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.job_context import Site
from tunefleet.client.external.interrupt import interruptibly
from tunefleet.errors import InputError
from tunefleet.schemas.worker_link import ResumeFrom

_LOOK_S: Final = 0.1


def prepare(site: Site, job: AgentJob, heed: Callable[[], None]) -> None:
    """Bring everything here.

    Raises:
        TunefleetError: If something cannot be had.
    """
    _Preparation(site, job, heed).run()


class _Preparation:
    def __init__(self, site: Site, job: AgentJob, heed: Callable[[], None]) -> None:
        self._site = site
        self._job = job
        self._heed = heed

    def run(self) -> None:
        """Do all of it; what is done already is not done again."""
        job = self._job
        for pointer, address in job.record.addresses.items():
            if pointer in job.record.inputs:
                continue
            self._heed()
            job.phase = "downloading"
            path = interruptibly(partial(self._site.fetch, address), self._look)
            job.note(inputs={**job.record.inputs, pointer: str(path)})
        for pointer, ref in job.record.digests.items():
            if pointer not in job.record.inputs:
                self._heed()
                job.phase = "downloading"
                job.note(inputs={**job.record.inputs, pointer: str(self._artifact(ref))})
        if job.record.checkpoint is not None:
            source = Path(job.record.checkpoint)
            self._bring(source, source.name)
            job.note(checkpoint=None, from_step=int(source.name.rpartition("-")[2]))
        if job.record.resume is not None:
            job.note(resume=None, from_step=self._restore(job.record.resume))
        self._heed()

    def _look(self) -> None:
        self._heed()
        time.sleep(_LOOK_S)

    def _bring(self, source: Path, name: str) -> None:
        """Copy a checkpoint into the job folder, whole or not at all."""
        dest = self._job.folder.checkpoints_dir / name
        if not dest.exists():
            part = dest.with_name(f".{name}.partial")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part)
            part.replace(dest)

    def _restore(self, resume: ResumeFrom) -> int | None:
        """Make the checkpoint available that the server wants to go on from; return its step if it must be that one."""
        step = resume.step
        here = self._job.checkpoints()
        if step is None or step in here or (not resume.exact and any(other > step for other in here)):
            return step if resume.exact else None
        if resume.checkpoint is None:
            if resume.exact:
                raise InputError(
                    f"Nobody has the checkpoint of step {step} any more.",
                    hint="Resume from another step, or retry the job from the beginning.",
                )
            self._job.add_warning(f"The checkpoint of step {step} cannot be had; it begins with what is here.")
            return None
        source = self._artifact({"digest": resume.checkpoint.digest, "name": resume.checkpoint.name})
        whole = source if (source / "manifest.json").is_file() else next(source.glob("checkpoint-*"), source)
        self._bring(whole, f"checkpoint-{step}")
        return step if resume.exact else None

    def _artifact(self, ref: dict[str, str]) -> Path:
        record = self._job.record
        if record.backend is None or record.token is None:
            raise InputError(
                f"{ref.get('name', 'An input')} cannot be fetched: no backend is known.", hint="Set BACKEND_URL."
            )
        return self._site.backend(record.backend, record.token).fetch_input(
            ref, self._site.settings.datasets_dir.expanduser().absolute() / ".inputs"
        )
