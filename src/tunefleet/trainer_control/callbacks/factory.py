"""The Trainer callbacks of a job: control, checkpoints, random state, journal, ending, in the required order.

Control comes first, since it may request a save or end the run; the journal records the decisions of the others; a
pause ends the process last.
"""

from __future__ import annotations

import atexit
import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..control.command_queue import CommandQueue
from ..control.control_server import ControlServer
from ..control.overrides import Overrides
from ..session import JobSession
from .checkpoint_callback import CheckpointCallback
from .control_callback import ControlCallback
from .journal_callback import JournalCallback
from .termination_callback import TerminationCallback


def callbacks_for_session(session: JobSession) -> list[TrainerCallback]:
    """Return the callbacks of a job that report to a session.

    Args:
        session: From `open_session`; a job without an `endpoint_dir` cannot be controlled.
    """
    board, server = _queue_and_server(session)
    return assemble(session, board, server, Overrides(session.folder))


def assemble(
    session: JobSession,
    board: CommandQueue,
    server: ControlServer | None,
    overrides: Overrides,
    *,
    retention: bool = True,
) -> list[TrainerCallback]:
    """Return the callbacks in their order.

    Args:
        session: The job's session.
        board: The command queue.
        server: Started with the training run; None if it is started elsewhere.
        overrides: Values changed by `set`.
        retention: Whether to take over the deletion of checkpoints.
    """
    checkpoints = CheckpointCallback(session, board, retention=retention)
    ending = TerminationCallback(session, board, checkpoints)
    control = ControlCallback(session, board, server, checkpoints, ending, overrides)
    return [control, checkpoints, RandomStateCallback(), JournalCallback(session), ending]


@functools.cache
def _queue_and_server(session: JobSession) -> tuple[CommandQueue, ControlServer | None]:
    """Return the command queue and the server of a process: one of each, for all its Trainers."""
    board = CommandQueue(session.folder if session.leads else None)
    endpoint_dir = session.job.get("endpoint_dir")
    if not endpoint_dir or not session.leads:
        return board, None
    # One port per process: it is opened by the first training run and closed at exit.
    server = ControlServer(session.job["job_id"], board, session.status, Path(endpoint_dir), job_folder=session.folder)
    atexit.register(server.stop)
    return board, server


class RandomStateCallback(TrainerCallback):
    """Saves the random state before an evaluation, and restores it afterwards: an evaluation must not change the run.

    Comes after the callbacks that may request an evaluation. A request of a later callback is not seen.
    """

    def __init__(self) -> None:
        self._put_back: Callable[[], None] | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save the state if the step is evaluated."""
        self._put_back = capture() if control.should_evaluate else None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the state if the epoch is evaluated."""
        self._put_back = capture() if control.should_evaluate else None

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the random state; called once per evaluation set."""
        if self._put_back is not None:
            self._put_back()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the state: later evaluations are not ours."""
        self._put_back = None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the state."""
        self._put_back = None


def capture() -> Callable[[], None]:
    """Return a function that restores the current random state: Python's, NumPy's, torch's on CPU and CUDA.

    Only libraries that are already imported have a state, and only a CUDA that is initialized.
    """
    # The modules are looked up in sys.modules, so that nothing is imported for the capture.
    undo: list[Callable[[], None]] = []
    ours = random.getstate()
    undo.append(lambda: random.setstate(ours))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        theirs = numpy.random.get_state()
        undo.append(lambda: numpy.random.set_state(theirs))
    torch = sys.modules.get("torch")
    if torch is not None:
        cpu = torch.get_rng_state()
        undo.append(lambda: torch.set_rng_state(cpu))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            devices = torch.cuda.get_rng_state_all()
            undo.append(lambda: torch.cuda.set_rng_state_all(devices))

    def put_back() -> None:
        for step in undo:
            step()

    return put_back
