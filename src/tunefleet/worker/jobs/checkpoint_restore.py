"""Puts the checkpoint that an attempt resumes from into its job folder, verified against its manifest.

Sources, in this order: the job folder itself, the folder of the task that this one continues, the server.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tunefleet.errors import ArtifactError, InputError, NotFoundError
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import InputRef, ResumeFrom
from tunefleet.trainer_control.checkpoints.manifest import SUPERSEDED, find_newest, invalid_reason, supersede_beyond
from tunefleet.trainer_control.files import make_private, sync_folder

logger = logging.getLogger(__name__)

# Downloads an artifact into a folder with retries; may resume an interrupted download.
Fetch = Callable[[InputRef, Path], object]
_DRAFT: Final = ".restoring-"
_COPY: Final = f"{_DRAFT}copy"
_LACKING: Final = (NotFoundError, ArtifactError)


class CheckpointRestorer:
    """Prepares one job folder in which no job runs."""

    def __init__(self, folder: JobFolder, other: Callable[[str], JobFolder], fetch: Fetch) -> None:
        self._folder = folder
        self._other = other
        self._fetch = fetch

    def prepare(self, resume: ResumeFrom) -> int | None:
        """Make the checkpoint available.

        Returns:
            The step that the launch must start at; None for the newest checkpoint.

        Raises:
            InputError: If a specific checkpoint is required and not available.
            Dropped, Stopped: As `fetch` raises them.
        """
        root = self._folder.checkpoints_dir
        make_private(self._folder.root)
        root.mkdir(exist_ok=True)
        self._forget_drafts(resume)
        if resume.exact and resume.step is not None:
            if not self._have(resume.step, resume):
                raise InputError(
                    f"The checkpoint of step {resume.step} is missing or damaged.",
                    hint="List checkpoints with `tunefleet checkpoints RUN`; restart with `tunefleet retry RUN`.",
                )
            supersede_beyond(root, resume.step)
            return resume.step
        newest = find_newest(root)
        if resume.step is None or (newest is not None and newest.step >= resume.step):
            return None
        if not self._have(resume.step, resume):
            fallback = "starting from scratch" if newest is None else f"resuming from step {newest.step}"
            logger.warning("The checkpoint of step %d is not available; %s.", resume.step, fallback)
        elif resume.best is not None:
            self._bring(resume.best)
        return None

    def _forget_drafts(self, resume: ResumeFrom) -> None:
        """Delete partial downloads that are no longer needed."""
        wanted = {_draft_name(ref) for ref in (resume.checkpoint, resume.best) if ref is not None}
        for draft in self._folder.root.glob(f"{_DRAFT}*"):
            if draft.name not in wanted:
                shutil.rmtree(draft, ignore_errors=True)

    def _have(self, step: int, resume: ResumeFrom) -> bool:
        name = f"checkpoint-{step}"
        target = self._folder.checkpoints_dir / name
        if target.is_dir() and invalid_reason(target) is None:
            return True
        nearby = [*sorted((target.parent / SUPERSEDED).glob(f"{name}*"), reverse=True)]
        if resume.from_task is not None:
            nearby.append(self._other(resume.from_task).checkpoints_dir / name)
        for source in nearby:
            if source.is_dir() and invalid_reason(source) is None:
                self._place(target, lambda draft, source=source: shutil.copytree(source, draft, copy_function=_link))  # type: ignore[misc]
                return True
        return resume.checkpoint is not None and self._bring(resume.checkpoint)

    def _bring(self, ref: InputRef) -> bool:
        target = self._folder.checkpoints_dir / ref.name
        if target.is_dir() and invalid_reason(target) is None:
            return True
        logger.info("InputDownload %s (%s).", ref.name, ref.digest[:12])
        try:
            self._place(target, lambda draft: self._fetch(ref, draft), draft_name=_draft_name(ref))
        except _LACKING as error:
            logger.warning("Could not fetch %s: %s", ref.name, error)
            return False
        return True

    def _place(self, target: Path, fill: Callable[[Path], object], *, draft_name: str = _COPY) -> None:
        """Fill a draft next to the checkpoints, verify it, and rename it into place."""
        draft = self._folder.root / draft_name
        # A draft of a download keeps its files, so that the download can resume; a copy starts over.
        if draft_name == _COPY:
            shutil.rmtree(draft, ignore_errors=True)
        fill(draft)
        fault = invalid_reason(draft)
        if fault is not None:
            shutil.rmtree(draft, ignore_errors=True)
            raise ArtifactError(f"{target.name} is damaged: {fault}.")
        # A damaged checkpoint of this name is moved aside, so that the draft can take its place.
        if target.exists():
            aside = target.parent / SUPERSEDED / f"{target.name}.broken"
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
        draft.rename(target)
        # Without the fsync of the folder the rename may be lost in a power failure.
        sync_folder(target.parent)


def _draft_name(ref: InputRef) -> str:
    return f"{_DRAFT}{ref.digest[:16]}"


def _link(source: str, target: str) -> str:
    """Hard-link an immutable file, or copy it where the file system has no links."""
    # JSON files are small, and a link would share later changes with the source.
    if source.endswith(".json"):
        return str(shutil.copy2(source, target))
    try:
        os.link(source, target)
    except OSError:
        return str(shutil.copy2(source, target))
    return target
