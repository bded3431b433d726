"""Attaches a job folder to every training run of a script that does not use Tunefleet.

Wraps `Trainer.train`: each Trainer gets the callbacks of the job before it trains, and a resumed job starts from its
newest complete checkpoint if the script names none. A failure in here never stops the training.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

from .. import diagnostics
from ..distributed import world
from ..files import read_json
from . import trainings
from .autoload_session import AttachedRun

logger = logging.getLogger("tunefleet.run")

# Compared by name: the script may have imported the class from another copy of this package.
_OWN = "TrainerControlCallback"
_IN_JOBS = "ControlCallback"


def attach_to(trainer_class: Any, folder: Path) -> None:
    """Make each training run of a Trainer class and its subclasses report to a job folder.

    Args:
        folder: The job folder, with its `job.json`.
    """
    diagnostics.listen()
    init, train = trainer_class.__init__, trainer_class.train
    hook = Hook(folder)

    @functools.wraps(init)
    def attached_init(self: Any, *args: Any, **kwargs: Any) -> None:
        # The script's own control callback would open a second port as soon as the Trainer is constructed.
        init(self, *map(hook.without_own, args), **{name: hook.without_own(value) for name, value in kwargs.items()})

    @functools.wraps(train)
    def attached_train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        return train(self, hook.prepare(self, resume_from_checkpoint), *args, **kwargs)

    trainer_class.__init__, trainer_class.train = attached_init, attached_train


class Hook:
    """The state of the attachment in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: AttachedRun | None = None
        self._lock: int | None = None
        self._refused = False
        self._trained = 0

    def without_own(self, given: Any) -> Any:
        """Return a script's callbacks without its own control callback, which would act a second time."""
        if not isinstance(given, (list, tuple)) or not any(_is_own(item) for item in given):
            return given
        logger.warning("The script's own %s is removed: this training run is controlled as %s", _OWN, self._folder.name)
        return [item for item in given if not _is_own(item)]

    def prepare(self, trainer: Any, given: Any) -> Any:
        """Attach to a Trainer that is about to train; return the checkpoint that it resumes from."""
        try:
            return self._prepare(trainer, given)
        # The script must train even if the attachment fails.
        except Exception as error:
            logger.warning("This training run cannot be controlled: %s", error, exc_info=True)
            return given

    def _prepare(self, trainer: Any, given: Any) -> Any:
        callbacks = list(trainer.callback_handler.callbacks)
        if self._refused or any(_IN_JOBS in _kinds(type(item)) for item in callbacks):
            return given
        job = read_json(self._folder / "job.json")
        if job is None or not self._claim():
            return given
        # Resolved now: the script may change its working directory later.
        output_dir = Path(trainer.args.output_dir or ".").resolve()
        if world.rank() == 0:
            training = trainings.begin(self._folder, job, output_dir, wanted=given in (None, False))
        else:
            training = trainings.await_begin(self._folder, job["launch"], self._trained)
        if self._run is None:
            self._run = AttachedRun.open(self._folder, job, training)
        for callback in filter(_is_own, callbacks):
            # Passed by the script after construction, so `without_own` has not seen it.
            trainer.remove_callback(callback)
        self._run.add_to(trainer)
        self._trained += 1
        return str(training.checkpoint.path) if training.checkpoint is not None else given

    def _claim(self) -> bool:
        """Become the one process of the script that reports; two processes would write to the same journal."""
        if self._lock is not None or world.rank() > 0:
            return True
        self._lock = trainings.claim(self._folder)
        if self._lock is None:
            self._refused = True
            logger.warning("Another process of this run is training; this one is not controlled")
        return self._lock is not None


def _is_own(callback: Any) -> bool:
    return _OWN in _kinds(callback if isinstance(callback, type) else type(callback))


def _kinds(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}
