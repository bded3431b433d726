"""Input cache of this machine: artifacts under `<results>/.inputs/`, fetched once and shared by all jobs.

<digest>/            the files, renamed into place when complete and verified
<digest>.unpacked/   the same, unpacked, if the artifact is an archive
<digest>.json        path of the artifact; written last: without it the input is incomplete
<digest>.lock        held by the process that fetches it
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tunefleet.artifacts import is_archive, unpack
from tunefleet.fsutil import write_synced
from tunefleet.schemas.worker_link import InputRef
from tunefleet.trainer_control.files import make_private

logger = logging.getLogger(__name__)

# (digest, folder) -> path of the fetched file or folder.
Fetch = Callable[[str, Path], Path]


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
