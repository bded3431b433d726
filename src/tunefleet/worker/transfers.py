"""File transfers of this worker: allowed paths and URLs, bandwidth, archive format; and the input cache.

Inputs are artifacts under `<results>/.inputs/`, fetched once and shared by all jobs:

    <digest>/            the files, renamed into place when complete and verified
    <digest>.unpacked/   the same, unpacked, if the artifact is an archive
    <digest>.json        path of the artifact; written last: without it the input is incomplete
    <digest>.lock        held by the process that fetches it
    <digest>.part/       an incomplete download, which a later fetch resumes; deleted after a day
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from tunefleet.artifacts import Packing, is_archive, unpack
from tunefleet.client.throttle import Throttle
from tunefleet.errors import InputError
from tunefleet.fsutil import write_synced
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import InputRef
from tunefleet.settings import WorkerSettings
from tunefleet.trainer_control.files import make_private, read_json

_JOB: Final = JobFolder(Path()).job_json.name
_FORBIDDEN: Final = (
    "on a worker a workflow may only use uploaded files, files in a folder of TUNEFLEET_SHARED_DIRS, "
    "and files of tasks in the same project."
)
_HINT: Final = "Use a path next to the workflow file, which is uploaded then, or share the folder on the worker."
logger = logging.getLogger(__name__)
_PARTIAL_KEPT_S: Final = 86_400.0
# (digest, folder) -> path of the fetched file or folder.
Fetch = Callable[[str, Path], Path]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfer settings of one worker.

    Args:
        throttle: Bandwidth limit for all transfers together; None for no limit.
    """

    server_url: str = ""
    folders: tuple[Path, ...] = ()
    url_allow: tuple[str, ...] = ()
    throttle: Throttle | None = None
    packing: Packing = field(default_factory=Packing)
    patience_s: float = 86_400.0
    cleanup: bool = False

    def writable(self, path: Path, project: str | None, what: str) -> Path:
        """Return a path, links resolved, that a workflow may write to.

        Raises:
            InputError: If it is not allowed.
        """
        with _in_words(what):
            resolved = path.resolve()
            self._check(resolved, project, must_be_owned=False)
        return resolved

    def readable(self, text: str, project: str | None, what: str, inner: str | None = None) -> Path | None:
        """Return a path, links resolved, that a workflow may read; None if it does not exist.

        Raises:
            InputError: If it is neither in a shared folder nor in a task's folder of the same project, whether
                it exists or not.
        """
        with _in_words(what):
            path = Path(text)
            target = (path if path.is_absolute() or not self.folders else self.folders[0] / path).resolve()
            for each in (target, *([] if inner is None else [(target / inner).resolve()])):
                self._check(each, project, must_be_owned=self._within(each) == self._results)
                if each.is_dir() and next(each.glob(f"*/{_JOB}"), None) is not None:
                    raise _OutOfBounds  # it contains job folders of any project
            return target if target.exists() else None

    @property
    def _results(self) -> Path | None:
        return self.folders[0].resolve() if self.folders else None

    def _within(self, path: Path) -> Path | None:
        """Return the innermost of the folders that contain a path: the results folder may be inside a shared folder."""
        around = [folder for each in self.folders if path.is_relative_to(folder := each.resolve())]
        return max(around, key=lambda folder: len(folder.parts), default=None)

    def _check(self, path: Path, project: str | None, *, must_be_owned: bool) -> None:
        """Reject a path that is outside of the folders, hidden, or in the folder of another project's task."""
        folder = self._within(path)
        names = () if folder is None else path.relative_to(folder).parts
        # Hidden folders hold the uploads of all projects (`.inputs`) and the worker's own state.
        if folder is None or any(name.startswith(".") for name in names):
            raise _OutOfBounds
        ways = [folder.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
        # Results that a destination copied into a folder of TUNEFLEET_RESULTS_DIR are in a folder named by the task id.
        owners = [owner for way in ways for owner in (_owner(way), _owner(folder / way.name)) if owner is not None]
        if any(owner != (project,) for owner in owners) or (must_be_owned and not owners):
            raise _OutOfBounds


class _OutOfBounds(Exception):
    """A path that a workflow may not use."""


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except (_OutOfBounds, OSError, ValueError, RuntimeError):  # OSError and others: too long, a null byte, a link cycle
        raise InputError(f"{what}: {_FORBIDDEN}", hint=_HINT) from None


def _owner(folder: Path) -> tuple[str | None] | None:
    """Return the project of the task that owns a job folder, as a tuple; None if it is not a job folder."""
    if not (folder / _JOB).exists():
        return None
    job = read_json(folder / _JOB)
    return ("\0",) if job is None else (job.get("project"),)  # unreadable: matches no project


def of(settings: WorkerSettings, results_dir: Path) -> Transfers:
    """Build the transfer settings from a worker's settings."""
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


class InputStore:
    """The inputs of one results folder; several worker processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def materialise(self, ref: InputRef, fetch: Fetch) -> Path:
        """Return the local path of an artifact, fetching it if it is not cached."""
        make_private(self._root)
        # A file lock, not a thread lock: other worker processes may fetch into the same folder.
        with FileLock(self._root / f"{ref.digest}.lock"):
            known = self._known(ref.digest)
            if known is not None:
                return known
            logger.info("InputDownload %s (%s).", ref.name, ref.digest[:12])
            path = self._settle(ref.digest, fetch)
            write_synced(self._note(ref.digest), json.dumps({"path": str(path.relative_to(self._root))}))
            return path

    def delete_stale(self) -> None:
        """Delete incomplete downloads that nothing has resumed for a day, such as those of a killed worker."""
        for part in self._root.glob("*.part"):
            try:
                with FileLock(self._root / f"{part.stem}.lock", timeout=0):
                    newest = max(path.stat().st_mtime for path in (part, *part.rglob("*")))
                    if time.time() - newest > _PARTIAL_KEPT_S:
                        logger.info("Deleting the incomplete download %s.", part.name)
                        shutil.rmtree(part)
            except Timeout:
                continue  # another worker process is fetching it
            except OSError as error:
                logger.warning("Cannot delete the incomplete download %s: %s", part.name, error)

    def _note(self, digest: str) -> Path:
        return self._root / f"{digest}.json"

    def _known(self, digest: str) -> Path | None:
        try:
            path = self._root / str(json.loads(self._note(digest).read_text(encoding="utf-8"))["path"])
        except (OSError, ValueError, KeyError):
            return None
        return path if path.exists() else None

    def _settle(self, digest: str, fetch: Fetch) -> Path:
        part, whole = self._root / f"{digest}.part", self._root / digest
        part.mkdir(exist_ok=True)
        # A partial download of an earlier process stays in `.part`, so that the fetch can resume it.
        inner = fetch(digest, part).relative_to(part)
        shutil.rmtree(whole, ignore_errors=True)
        part.replace(whole)
        path = whole / inner
        return self._unpacked(digest, path) if path.is_file() and is_archive(path) else path

    def _unpacked(self, digest: str, archive: Path) -> Path:
        whole = self._root / f"{digest}.unpacked"
        shutil.rmtree(whole, ignore_errors=True)
        return unpack(archive, whole)
