"""How files come to this worker and leave it: where from, where to, how fast, packed how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tunefleet.artifacts import Packing
from tunefleet.client.throttle import Throttle
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.settings import WorkerSettings
from tunefleet.trainer_control.files import read_json

_JOB: Final = JobFolder(Path()).job_json.name
_FORBIDDEN: Final = (
    "on a worker a document may only name what was uploaded with it, what lies in a folder of TUNEFLEET_SHARED_DIRS, "
    "and what a task of the same project has left."
)
_HINT: Final = "Name a path beside the document, which is uploaded then, or have the folder shared by the worker."


@dataclass(frozen=True, slots=True)
class Transfers:
    """Limits and ways of one worker.

    Args:
        throttle: Holds all transfers together to a speed; null for none.
    """

    server_url: str = ""
    folders: tuple[Path, ...] = ()
    url_allow: tuple[str, ...] = ()
    throttle: Throttle | None = None
    packing: Packing = field(default_factory=Packing)
    patience_s: float = 86_400.0
    cleanup: bool = False

    def writable(self, path: Path, project: str | None, what: str) -> Path:
        """Return a path, links resolved, that a document may write to."""
        with _in_words(what):
            found = path.resolve()
            self._check(found, project, must_be_owned=False)
        return found

    def readable(self, text: str, project: str | None, what: str, inner: str | None = None) -> Path | None:
        """Return a path, links resolved, that a document may read; nothing else on this disk is for documents.

        Raises:
            InputError: If it lies neither in a shared folder nor in a task's folder of the same project, whether
                something is there or not.
        """
        with _in_words(what):
            path = Path(text)
            found = (path if path.is_absolute() or not self.folders else self.folders[0] / path).resolve()
            for each in (found, *([] if inner is None else [(found / inner).resolve()])):
                self._check(each, project, must_be_owned=self._within(each) == self._results)
                if each.is_dir() and next(each.glob(f"*/{_JOB}"), None) is not None:
                    raise _OutOfBounds  # tasks of anybody lie in it
            return found if found.exists() else None

    @property
    def _results(self) -> Path | None:
        return self.folders[0].resolve() if self.folders else None

    def _within(self, path: Path) -> Path | None:
        """Return the innermost of the folders that a path lies in: RESULTS_DIR may be part of what is shared."""
        around = [folder for each in self.folders if path.is_relative_to(folder := each.resolve())]
        return max(around, key=lambda folder: len(folder.parts), default=None)

    def _check(self, path: Path, project: str | None, *, must_be_owned: bool) -> None:
        """Refuse what lies outside of the folders, is hidden, or lies in the folder of another project's task."""
        folder = self._within(path)
        names = () if folder is None else path.relative_to(folder).parts
        # A worker keeps the uploads of all projects in `.inputs`, and its own state in others.
        if folder is None or any(name.startswith(".") for name in names):
            raise _OutOfBounds
        ways = [folder.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
        # What a destination has copied into a folder of RESULTS_DIR lies below the id of its task.
        owners = [owner for way in ways for owner in (_owner(way), _owner(folder / way.name)) if owner is not None]
        if any(owner != (project,) for owner in owners) or (must_be_owned and not owners):
            raise _OutOfBounds


class _OutOfBounds(Exception):
    """A path that a document may not name."""


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except (_OutOfBounds, OSError, ValueError, RuntimeError):  # or too long, with a null byte, links in a circle
        raise InputError(f"{what}: {_FORBIDDEN}", hint=_HINT) from None


def _owner(folder: Path) -> tuple[str | None] | None:
    """Return the project of the task whose folder it is, null without projects; None if it is no task's."""
    if not (folder / _JOB).exists():
        return None
    job = read_json(folder / _JOB)
    return ("\0",) if job is None else (job.get("project"),)  # a file that cannot be read makes it nobody else's


def of(settings: WorkerSettings, results_dir: Path) -> Transfers:
    """Return what a worker's settings say."""
    speed = settings.bandwidth_bytes_per_s
    shared = (Path(folder).expanduser().absolute() for folder in settings.shared_dirs)
    return Transfers(
        server_url=settings.server_url,
        folders=(results_dir, *shared),
        url_allow=settings.url_allow,
        throttle=None if speed is None else Throttle(speed),
        packing=Packing(
            level=settings.archive_level,
            pigz=settings.archive_pigz_bin if settings.archive_pigz else None,
            threads=settings.archive_pigz_threads,
        ),
        patience_s=settings.delivery_patience_s,
        cleanup=settings.cleanup_after_upload,
    )
