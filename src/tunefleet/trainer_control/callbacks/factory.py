"""The Trainer callbacks of a job: control, checkpoints, random state, journal, ending, in the order that they need.

Control first, since it may ask for a save or end the run; the journal records what the others decided; a pause ends
the process last.
"""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

from transformers import TrainerCallback

from tunefleet.trainer_control.callbacks.checkpoint_callback import CheckpointCallback
from tunefleet.trainer_control.callbacks.control_callback import ControlCallback
from tunefleet.trainer_control.callbacks.journal_callback import JournalCallback
from tunefleet.trainer_control.callbacks.termination_callback import EndingCallback
from tunefleet.trainer_control.control.control_server import ControlServer

from ..control.command_queue import CommandBoard
from ..control.overrides import Overrides
from ..session import JobSession
from .rng import RandomStateCallback


def callbacks_for_session(session: JobSession) -> list[TrainerCallback]:
    """Return the callbacks of a job that report to a session.

    Args:
        session: What `open_session` gave; without an `endpoint_dir` in its job nobody can steer the training.
    """
    board, server = _steering(session)
    return assemble(session, board, server, Overrides(session.folder))


def assemble(
    session: JobSession,
    board: CommandBoard,
    server: ControlServer | None,
    overrides: Overrides,
    *,
    retention: bool = True,
) -> list[TrainerCallback]:
    """Return our callbacks in their order.

    Args:
        session: What the job reports with.
        board: Where commands wait.
        server: Started with the training; None if it is started by somebody else.
        overrides: What `set` has changed.
        retention: Whether to take over which checkpoints are deleted.
    """
    checkpoints = CheckpointCallback(session, board, retention=retention)
    ending = EndingCallback(session, board, checkpoints)
    control = ControlCallback(session, board, server, checkpoints, ending, overrides)
    return [control, checkpoints, RandomStateCallback(), JournalCallback(session), ending]


@functools.cache
def _steering(session: JobSession) -> tuple[CommandBoard, ControlServer | None]:
    """Return what steers a process: one board and one port, however many Trainers it has, one after the other."""
    board = CommandBoard(session.folder if session.leads else None)
    endpoint_dir = session.job.get("endpoint_dir")
    if not endpoint_dir or not session.leads:
        return board, None
    server = ControlServer(session.job["job_id"], board, session.status, Path(endpoint_dir), job_folder=session.folder)
    atexit.register(server.stop)
    return board, server
