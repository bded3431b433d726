"""Control for a training loop that somebody wrote himself: no Trainer, no callbacks.

    with tunefleet.control("my-run") as c:
        for step, batch in enumerate(batches, start=c.step_reached + 1):
            loss = train_on(batch)
            asked = c.step(step, {"loss": loss})
            if asked.save:
                save(f"out/checkpoint-{step}")
                c.saved(f"out/checkpoint-{step}")
            if asked.stop:
                break

The standard library is enough. Of several ranks of torch.distributed the first listens; all get the same answer at the
same step, and all call `saved`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from . import identity, trainings, world
from .adoption import adopt
from .attached import AttachedRun
from .board import ABORTED
from .checkpoints import Checkpoint
from .claim import jobs_dir
from .endpoint import safe_job_id
from .environ import variable
from .files import make_private, read_json, write_json
from .inject import ATTACHED_TO
from .journal_lines import plain_values
from .loop_steering import NOTHING, Asked, Steering, newest, overrides
from .meeting import Meeting
from .preemption import SigtermPause
from .ranks import Decider, decider_for
from .trainings import Training

logger = logging.getLogger("tunefleet.control")


class Control:
    """Steers one loop; made by `control`.

    Args:
        job_id: Its name.
        folder: Its job folder.
        max_steps: How many steps it will take, if that is known.
        http: Whether to open a port; without, commands are files.
        attached: Whether the folder is that of the job which has started this process.
    """

    def __init__(self, job_id: str, folder: Path, max_steps: int, *, http: bool, attached: bool = False) -> None:
        self._attached = attached
        self.job_id = safe_job_id(job_id)
        self.folder = folder
        self._max_steps = max_steps
        self._http = http
        self._run: AttachedRun | None = None
        self._decider: Decider | None = None
        self._sigterm: SigtermPause | None = None
        self._step = 0
        self._steering = Steering(self.folder)
        self._meeting: Meeting | None = None
        self._lock: int | None = None
        self.values: dict[str, float] = {}
        self.resume: Checkpoint | None = None

    @property
    def step_reached(self) -> int:
        """The step of the checkpoint to resume from; 0 if there is none."""
        return self.resume.step if self.resume is not None else 0

    def __enter__(self) -> Control:
        """Make the job findable, and look for the checkpoint to go on from."""
        make_private(self.folder)
        self.resume = newest(self.folder)
        job = self._job_of_process() if self._attached else self._job_of_its_own()
        self.values = overrides(self.folder)
        self._run = AttachedRun.open(self.folder, job, self._training(job))
        self._begin()
        return self

    def _training(self, job: dict[str, Any]) -> Training:
        if not self._attached:
            return Training(1, self.folder, self.resume)
        if world.rank() == 0:
            training = trainings.begin(self.folder, job, (self.folder / "checkpoints").resolve(), wanted=True)
        else:
            training = trainings.await_begin(self.folder, job["launch"], 0)
        # What the task's journal begins with, so that no point of an earlier launch is hidden.
        self.resume = training.checkpoint
        return training

    def _job_of_process(self) -> dict[str, Any]:
        job = read_json(self.folder / "job.json")
        if job is None:
            raise RuntimeError(f"{self.folder} is no job folder, and {ATTACHED_TO} names it.")
        if world.rank() == 0 and self._lock is None:
            self._lock = trainings.claim(self.folder)
            if self._lock is None:
                raise RuntimeError(f"Another process of {job['job_id']} reports already; give this loop a folder.")
        self.job_id = str(job["job_id"])
        return job

    def _job_of_its_own(self) -> dict[str, Any]:
        before = read_json(self.folder / "job.json") or {}
        job = {
            "job_id": self.job_id,
            "task_id": self.job_id,
            "attempt": int(before.get("attempt") or 0) + 1,
            "launch": f"launch-{uuid.uuid4().hex[:12]}",
            "kind": "loop",
            "name": self.job_id,
            "program": "loop",
            "spec": {"http": self._http},
            "endpoint_dir": str(jobs_dir()),
        }
        if world.rank() == 0:
            self._refuse_a_second()
            write_json(self.folder / "job.json", job)
        return job

    def step(self, step: int, logs: Mapping[str, Any] | None = None, *, epoch: float | None = None) -> Asked:
        """Say that an optimizer step is done; return what is asked for.

        Without anything it costs about a microsecond, and the logs another few.

        Args:
            step: Which one, counted from 1.
            logs: Values to record; numbers, or scalars that can be read without waiting for a device.
            epoch: As a fraction.

        Raises:
            SystemExit: If the job is aborted.
        """
        run = self._opened()
        self._step = step
        if self._decider is None:
            self._decider = decider_for(run.board)
            self._sigterm = SigtermPause(run.session, run.board)
            self._sigterm.begin(self._decider.broken)
        if logs:
            self._record(run, logs, epoch)
        commands = self._decider.due(step)
        if not commands:
            return NOTHING
        asked = self._steering.act(run, step, commands)
        self.values.update(asked.values)
        return asked

    def saved(self, path: str | os.PathLike[str], step: int | None = None) -> None:
        """Say that a checkpoint is written: it gets its manifest, and can be resumed from.

        Args:
            path: A folder that nobody writes to any more; it holds this checkpoint alone.
            step: The step that it is of; default: the last one.

        Raises:
            SystemExit: If it was a pause's: the process ends here.
            OSError: If it cannot be read or made durable.
        """
        run = self._opened()
        if self._meeting is None and world.size() > 1 and world.distributed() is not None:
            self._meeting = Meeting()
        meeting = self._meeting
        if meeting is not None:
            meeting.wait()  # everybody has written
        fault: OSError | None = None
        if run.session.rank == 0:
            try:
                if self._attached:
                    adopt(self.folder, Path(path).resolve().parent, {})
                self._steering.finish(run, Path(path).resolve(), self._step if step is None else step)
            except OSError as error:
                fault = error
        whole = fault is None if meeting is None else meeting.tell(whole=fault is None)
        if not whole:
            self._steering.pausing = False
            raise fault or OSError(f"{path} could not be made durable; rank 0 says why")
        if self._steering.pausing:
            run.board.close("the training was paused")
            raise SystemExit(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the loop ended; what was asked for and not done has failed."""
        run, self._run = self._run, None
        if run is None:
            return
        if self._sigterm is not None:
            self._sigterm.end()
        try:
            if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0, ABORTED)):
                run.on_exception(error)
        finally:
            self._steering.give_up(run, "the loop ended without saying that it had saved")
            run.on_exit()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _begin(self) -> None:
        run = self._opened()
        session, start = run.session, self.step_reached
        data = {"from_step": start, "max_steps": self._max_steps, "series": "train"}
        session.journal.event("training.started", f"Training from step {start}.", data=data)
        session.status.write(state="running", phase="training", step=start, max_steps=self._max_steps)
        if run.server is None:
            return
        try:
            run.server.start()
        except OSError as error:
            logger.warning("The control port could not be opened: %s", error)

    def _record(self, run: AttachedRun, logs: Mapping[str, Any], epoch: float | None) -> None:
        run.session.journal.metric(self._step, logs, epoch=epoch, window=(self._step, self._step))
        run.session.status.update(step=self._step, values=plain_values(logs))

    def _opened(self) -> AttachedRun:
        if self._run is None:
            raise RuntimeError("control is used inside its with block only")
        return self._run

    def _refuse_a_second(self) -> None:
        endpoint = read_json(jobs_dir() / self.job_id / "endpoint.json") or {}
        same = (endpoint.get("hostname"), endpoint.get("boot_id")) == (identity.hostname(), identity.boot_id())
        started_at = identity.process_started_at(int(endpoint.get("pid") or 0)) if same else None
        if started_at is not None and started_at == endpoint.get("process_started_at"):
            raise RuntimeError(f"A job {self.job_id} lives already; give this one another id.")


def control(
    job_id: str, *, max_steps: int = 0, folder: str | os.PathLike[str] | None = None, http: bool = True
) -> Control:
    """Let a training loop be steered: `tunefleet control status|save|stop|pause|… JOB`.

    Args:
        job_id: Its name: letters, digits, dot, dash and underscore. The same name again goes on with what was saved.
        max_steps: How many steps it will take, for who watches.
        folder: Its job folder; default: that of the task that runs this script, else `tunefleet-runs/<job_id>` here.
        http: Whether to open a port on loopback; without, commands are files.

    Raises:
        ValueError: If the name could not be a file's.
    """
    attached = None if folder is not None else variable(ATTACHED_TO)
    if attached is not None:
        return Control(job_id, Path(attached), max_steps, http=http, attached=True)
    return Control(job_id, Path(folder or Path("tunefleet-runs", job_id)).resolve(), max_steps, http=http)
