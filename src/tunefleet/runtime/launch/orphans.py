"""Ends what outlives a job's trainer and its keeper.

A keeper ends what its trainer leaves in its process group. If both were killed, or a process has left the group, it
may live on and hold the job's lock, and nothing would ever say that the job has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal

from tunefleet.runtime import locks
from tunefleet.runtime.exit_classification import read_process
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json

logger = logging.getLogger(__name__)


def end_leftovers(folder: JobFolder) -> bool:
    """Kill what holds a job's lock although trainer and keeper are gone; tell whether they are.

    Args:
        folder: The job folder.
    """
    process = read_process(folder)
    if process is None or not process.keeper_pid:
        return False
    if (read_json(folder.job_json) or {}).get("launch") != process.launch:
        return False  # the keeper of the next launch may just hold the lock and not have said so yet
    known = ((process.pid, process.process_started_at), (process.keeper_pid, process.keeper_started_at))
    same_boot = process.boot_id == process_identity.boot_id()
    if same_boot and any(at is not None and process_identity.process_started_at(pid) == at for pid, at in known):
        return False
    for pid in locks.holders(folder.lock):
        logger.warning("%s: process %d has outlived its trainer and is killed", folder.root.name, pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True
