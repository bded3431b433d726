"""Deletes the job folders of tasks that were removed from the server.

In a thread of its own: a folder may hold many gigabytes of checkpoints, and the exchange must not wait for them.
"""

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

# What makes a folder a job folder.
_MARKS: Final = ("job.json", MARK)


class Discarder:
    """Deletes folders, and says so."""

    def __init__(self, results_dir: Path, outbox: Outbox, in_use: Callable[[str], bool]) -> None:
        self._results_dir = results_dir
        self._outbox = outbox
        self._in_use = in_use
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="discard")

    def discard(self, task_ids: Iterable[str]) -> None:
        """Begin to delete folders; what is under way already is not begun again."""
        for task_id in task_ids:
            with self._lock:
                if task_id in self._under_way or self._in_use(task_id):
                    continue
                self._under_way.add(task_id)
            self._pool.submit(self._delete, task_id)

    def close(self) -> None:
        """Begin no more; a deletion that is under way ends first."""
        self._pool.shutdown(cancel_futures=True)

    def _delete(self, task_id: str) -> None:
        try:
            folder = self._results_dir / task_id
            # The server is trusted with tasks, not with paths.
            if folder.parent != self._results_dir or not any((folder / name).is_file() for name in _MARKS):
                self._outbox.discarded(task_id)
                return
            # The marks last: if this is cut short, the rest is still known for a job folder.
            for entry in folder.iterdir():
                if entry.name not in _MARKS:
                    _remove(entry)
            shutil.rmtree(folder)
            logger.info("Deleted the folder of task %s, which was removed.", task_id)
            self._outbox.discarded(task_id)
        except OSError as error:
            # Not reported: the server asks again.
            logger.warning("The folder of task %s cannot be deleted: %s", task_id, error)
        finally:
            with self._lock:
                self._under_way.discard(task_id)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
