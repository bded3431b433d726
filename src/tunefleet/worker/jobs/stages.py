"""The results of earlier stages on this machine, a folder for each: what the code of a `python` task is given.

<job folder>/inputs/upstream/<stage>/results.json   the stage's result, with where it comes from
<job folder>/inputs/upstream/<stage>/…              the files that it has left
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tunefleet.artifacts import hash_file
from tunefleet.errors import ForbiddenError, InputError, NotFoundError
from tunefleet.schemas.compat.task_results import ARCHIVE_KIND, ResultFile
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.worker.jobs.fetch_progress import Fetching
from tunefleet.worker.ports import Delivery

_FORBIDDEN: Final = (NotFoundError, ForbiddenError)
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._ -]")


class Stages:
    """Brings the results of other tasks."""

    def __init__(self, root: Path, other: Callable[[str], JobFolder], delivery: Delivery, fetching: Fetching) -> None:
        self._root = root
        self._other = other
        self._delivery = delivery
        self._fetching = fetching

    def bring(self, stages: Mapping[str, str]) -> dict[str, str]:
        """Bring the results and files of some stages."""
        return {f"upstream.{name}": str(self._one(name, task_id)) for name, task_id in stages.items()}

    def _one(self, name: str, task_id: str) -> Path:
        folder = self._root / (_UNUSUAL.sub("_", name).strip(". ") or task_id)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files = self._fetching.get(
                f"the result of {name}", lambda _: self._delivery.result_files(task_id), but=_FORBIDDEN
            )
        except _FORBIDDEN as error:
            raise InputError(f"The result of {name} cannot be had: {error.message}", hint=error.hint) from error
        for file in files:
            if file.kind != ARCHIVE_KIND:  # what is in it lies beside it
                self._file(task_id, file, folder / file.name)
        return folder

    def _file(self, task_id: str, file: ResultFile, target: Path) -> None:
        if not target.resolve().is_relative_to(self._root.resolve()):
            raise InputError(f"The task {task_id} has left a file of the name {file.name!r}, which leads elsewhere.")
        if target.is_file() and hash_file(target)[0] == file.sha256:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        here = self._other(task_id).root / file.name
        if here.is_file() and here.stat().st_size == file.size_bytes and hash_file(here)[0] == file.sha256:
            shutil.copyfile(here, target)  # no link: code may write into what it is given
            return
        self._fetching.get(
            f"{file.name} of {task_id}",
            lambda tell: self._delivery.fetch_result_file(task_id, file, target, on_progress=tell),
        )
