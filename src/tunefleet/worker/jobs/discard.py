"""Deletes the job folders of tasks that were removed from the server."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tunefleet.worker.jobs.job_parts import MARK
from tunefleet.worker.outbox import Outbox

logger = logging.getLogger(__name__)

# A folder with one of these files is a job folder.
_MARKS: Final = ("job.json", MARK)


class Discarder:
    """Deletes folders, and reports each deletion."""

    def __init__(self, results_dir: Path, outbox: Outbox, in_use: Callable[[str], bool]) -> None:
        self._results_dir = results_dir
        self._outbox = outbox
        self._in_use = in_use
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        # A thread of its own: a folder may hold many gigabytes of checkpoints, and the exchange must not wait for it.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="discard")

    def discard(self, task_ids: Iterable[str]) -> None:
        """Start deleting folders; a deletion in progress is not started twice."""
        for task_id in task_ids:
            with self._lock:
                if task_id in self._under_way or self._in_use(task_id):
                    continue
                self._under_way.add(task_id)
            self._pool.submit(self._delete, task_id)

    def close(self) -> None:
        """Start no more deletions, and wait for the current one."""
        self._pool.shutdown(cancel_futures=True)

    def _delete(self, task_id: str) -> None:
        try:
            folder = self._results_dir / task_id
            # Task ids from the server are not trusted as paths: only job folders directly below the root are deleted.
            if folder.parent != self._results_dir or not any((folder / name).is_file() for name in _MARKS):
                self._outbox.discarded(task_id)
                return
            # Markers last: if this is interrupted, the folder is still recognized as a job folder.
            for entry in folder.iterdir():
                if entry.name not in _MARKS:
                    _remove(entry)
            shutil.rmtree(folder)
            logger.info("Deleted the folder of removed task %s.", task_id)
            self._outbox.discarded(task_id)
        except OSError as error:
            # Not reported: the server repeats the request.
            logger.warning("Could not delete the folder of task %s: %s", task_id, error)
        finally:
            with self._lock:
                self._under_way.discard(task_id)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
