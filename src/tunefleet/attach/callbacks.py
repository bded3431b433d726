"""The Trainer callbacks of a job: control, checkpoints, journal, in the order that they need.

Control first, since it may ask for a save or end the run; the journal last, since it records what the others decided.
"""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

from transformers import TrainerCallback

from .board import CommandBoard
from .callback_checkpoint import CheckpointCallback
from .callback_control import ControlCallback
from .callback_journal import JournalCallback
from .control import ControlServer
from .session import JobSession


def callbacks_for_session(session: JobSession) -> list[TrainerCallback]:
    """Return the callbacks of a job that report to a session.

    Args:
        session: What `open_session` gave; without an `endpoint_dir` in its job nobody can steer the training.
    """
    board, server = _steering(session)
    checkpoints = CheckpointCallback(session, board)
    return [ControlCallback(session, board, server, checkpoints), checkpoints, JournalCallback(session)]


@functools.cache
def _steering(session: JobSession) -> tuple[CommandBoard, ControlServer | None]:
    """Return what steers a process: one board and one port, however many Trainers it has, one after the other."""
    board = CommandBoard(session.folder)
    endpoint_dir = session.job.get("endpoint_dir")
    if not endpoint_dir:
        return board, None
    server = ControlServer(session.job["job_id"], board, session.status, Path(endpoint_dir), job_folder=session.folder)
    atexit.register(server.stop)
    return board, server
