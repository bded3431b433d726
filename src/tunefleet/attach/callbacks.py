"""The Trainer callbacks of a job: control, checkpoints, journal, in the order that they need.

Control first, since it may ask for a save or end the run; the journal last, since it records what the others decided.
"""

from __future__ import annotations

import atexit
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
    board = CommandBoard(session.folder)
    server = _server(session, board)
    checkpoints = CheckpointCallback(session, board)
    return [ControlCallback(session, board, server, checkpoints), checkpoints, JournalCallback(session)]


def _server(session: JobSession, board: CommandBoard) -> ControlServer | None:
    endpoint_dir = session.job.get("endpoint_dir")
    if not endpoint_dir:
        return None
    server = ControlServer(session.job["job_id"], board, session.status, Path(endpoint_dir), job_folder=session.folder)
    atexit.register(server.stop)
    return server
