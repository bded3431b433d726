"""Control for a hand-written training loop: no Trainer, no callbacks.

    with tunefleet.control("my-run") as c:
        for step, batch in enumerate(batches, start=c.step_reached + 1):
            loss = train_on(batch)
            asked = c.step(step, {"loss": loss})
            if asked.save:
                save(f"out/checkpoint-{step}")
                c.saved(f"out/checkpoint-{step}")
            if asked.stop:
                break

Needs the standard library only. With several ranks of torch.distributed, rank 0 takes the commands; all ranks get the
same answer at the same step, and all call `saved`.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from . import process_identity
from .autoload import trainings
from .autoload.autoload_session import AttachedRun
from .autoload.inject import ATTACHED_TO
from .autoload.trainings import Training
from .checkpoints.manifest import Checkpoint, finish_checkpoint, invalid_reason
from .checkpoints.resume import adopt
from .control.command_queue import ABORTED, SAVING, Command
from .control.discovery import jobs_dir, safe_job_id
from .distributed import world
from .distributed.step_agreement import SaveBarrier, StepCoordinator, coordinator_for
from .files import make_private, read_json, write_json
from .journal.writer import plain_values
from .preemption import PREFIX, SigtermPause
from .process_identity import variable

logger = logging.getLogger("tunefleet.control")
_SAVED = "saved.json"
_OVERRIDES = "overrides.json"
_STOPPING = ("graceful_stop", "save_and_stop", "pause")


class Control:
    """Controls one loop; created by `control`.

    Args:
        max_steps: Total number of steps, if it is known.
        http: Whether to open a port; without it, commands are files.
        attached: Whether the folder belongs to the job that started this process.
    """

    def __init__(self, job_id: str, folder: Path, max_steps: int, *, http: bool, attached: bool = False) -> None:
        self._attached = attached
        self.job_id = safe_job_id(job_id)
        self.folder = folder
        self._max_steps = max_steps
        self._http = http
        self._run: AttachedRun | None = None
        self._decider: StepCoordinator | None = None
        self._sigterm: SigtermPause | None = None
        self._step = 0
        self._commands = LoopCommands(self.folder)
        self._barrier: SaveBarrier | None = None
        self._lock: int | None = None
        self.values: dict[str, float] = {}
        self.resume: Checkpoint | None = None

    @property
    def step_reached(self) -> int:
        """The step of the checkpoint to resume from; 0 if there is none."""
        return self.resume.step if self.resume is not None else 0

    def __enter__(self) -> Control:
        """Make the job discoverable, and find the checkpoint to resume from."""
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
        # The task's journal begins with this checkpoint, so that no point of an earlier launch is hidden.
        self.resume = training.checkpoint
        return training

    def _job_of_process(self) -> dict[str, Any]:
        job = read_json(self.folder / "job.json")
        if job is None:
            raise RuntimeError(f"{self.folder} is not a job folder (from {ATTACHED_TO}).")
        if world.rank() == 0 and self._lock is None:
            self._lock = trainings.claim(self.folder)
            if self._lock is None:
                raise RuntimeError(f"Another process of {job['job_id']} already reports; pass `folder` to this loop.")
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
            # Rank 0 alone writes the folder; the others would find an endpoint of their own job.
            self._refuse_a_second()
            write_json(self.folder / "job.json", job)
        return job

    def step(self, step: int, logs: Mapping[str, Any] | None = None, *, epoch: float | None = None) -> Asked:
        """Report that an optimizer step is done; return what is requested.

        Costs about a microsecond without a command, and a few more with logs.

        Args:
            step: Its number, counted from 1.
            logs: Values to record; numbers, or scalars that can be read without waiting for a device.

        Raises:
            SystemExit: If the job is aborted.
        """
        run = self._opened()
        # Created at the first step: the process groups of torch.distributed exist only from then on.
        self._step = step
        if self._decider is None:
            self._decider = coordinator_for(run.board)
            self._sigterm = SigtermPause(run.session, run.board)
            self._sigterm.begin(self._decider.broken)
        if logs:
            self._record(run, logs, epoch)
        commands = self._decider.due(step)
        if not commands:
            return NOTHING
        asked = self._commands.act(run, step, commands)
        self.values.update(asked.values)
        return asked

    def saved(self, path: str | os.PathLike[str], step: int | None = None) -> None:
        """Report that a checkpoint is written: it gets its manifest, and can be resumed from.

        Args:
            path: A folder that holds this checkpoint alone and is not written to any more.
            step: The step of the checkpoint; default: the last one.

        Raises:
            SystemExit: If the checkpoint was saved for a pause: the process ends here.
            OSError: If the checkpoint cannot be read or made durable.
        """
        run = self._opened()
        if self._barrier is None and world.size() > 1 and world.distributed() is not None:
            self._barrier = SaveBarrier()
        barrier = self._barrier
        if barrier is not None:
            barrier.wait()  # all ranks have written their files
        fault: OSError | None = None
        if run.session.rank == 0:
            try:
                if self._attached:
                    adopt(self.folder, Path(path).resolve().parent, {})
                self._commands.finish(run, Path(path).resolve(), self._step if step is None else step)
            except OSError as error:
                fault = error
        # All ranks must raise or return together, or the ones that return would wait for the others in a collective.
        whole = fault is None if barrier is None else barrier.tell(whole=fault is None)
        if not whole:
            self._commands.pausing = False
            raise fault or OSError(f"{path} could not be made durable; see the error of rank 0")
        if self._commands.pausing:
            run.board.close("the training was paused")
            raise SystemExit(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the loop ended; commands that were not carried out fail."""
        run, self._run = self._run, None
        if run is None:
            return
        if self._sigterm is not None:
            self._sigterm.end()
        try:
            if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0, ABORTED)):
                run.on_exception(error)
        finally:
            self._commands.give_up(run, "the loop ended without calling saved()")
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
        # Without a port, commands arrive as files.
        if run.server is None:
            return
        try:
            run.server.start()
        # Training without control is better than no training.
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
        # A pid of another machine or boot says nothing about this one.
        same = (endpoint.get("hostname"), endpoint.get("boot_id")) == (
            process_identity.hostname(),
            process_identity.boot_id(),
        )
        started_at = process_identity.process_started_at(int(endpoint.get("pid") or 0)) if same else None
        if started_at is not None and started_at == endpoint.get("process_started_at"):
            raise RuntimeError(f"A job {self.job_id} is already running; choose another id.")


def control(
    job_id: str, *, max_steps: int = 0, folder: str | os.PathLike[str] | None = None, http: bool = True
) -> Control:
    """Make a training loop controllable: `tunefleet control status|save|stop|pause|… JOB`.

    Args:
        job_id: Letters, digits, dot, dash and underscore. The same id resumes from what was saved before.
        max_steps: Total number of steps, for progress displays.
        folder: Its job folder; default: that of the task that runs this script, else `tunefleet-runs/<job_id>` here.
        http: Whether to open a port on loopback; without it, commands are files.

    Raises:
        ValueError: If the id is not a valid file name.
    """
    attached = None if folder is not None else variable(ATTACHED_TO)
    if attached is not None:
        return Control(job_id, Path(attached), max_steps, http=http, attached=True)
    return Control(job_id, Path(folder or Path("tunefleet-runs", job_id)).resolve(), max_steps, http=http)


@dataclass(frozen=True)
class Asked:
    """What is requested of the loop at the end of a step.

    Args:
        save: Save a checkpoint now, then call `saved`.
        stop: Leave the loop; after the save, if one is requested as well.
        values: What `set` has changed since the last step: `learning_rate`, `logging_steps` and so on.
    """

    save: bool = False
    evaluate: bool = False
    stop: bool = False
    values: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is requested."""
        return self.save or self.evaluate or self.stop or bool(self.values)


NOTHING = Asked()


class LoopCommands:
    """The commands of one loop, and their outcomes."""

    def __init__(self, folder: Path) -> None:
        self.pausing = False
        self._intent = "pause"
        self._folder = folder
        self._saving: list[str] = []
        self._asked_at = 0.0

    def act(self, run: AttachedRun, step: int, commands: Sequence[Command]) -> Asked:
        """Record that commands act at the end of a step, and return what the loop has to do for them.

        Raises:
            SystemExit: If one of them is an abort.
        """
        changes: dict[str, float] = {}
        for command in commands:
            self._apply(run, step, command, changes)
        names = {command.command for command in commands}
        return Asked(
            save=bool(names & set(SAVING)),
            evaluate="evaluate" in names,
            stop=bool(names & set(_STOPPING)),
            values=changes,
        )

    def finish(self, run: AttachedRun, path: Path, step: int) -> None:
        """Make what the loop has saved durable, and complete the commands that requested it.

        Raises:
            OSError: If that fails; the commands fail with it.
        """
        stall_s = time.perf_counter() - self._asked_at if self._saving else 0.0
        try:
            # Commands are completed only after the manifest is durable: the caller may stop the machine then.
            self._record(run, path, step, stall_s)
        except OSError as error:
            self.give_up(run, f"{path.name} could not be made durable: {error}")
            raise
        saving, self._saving = self._saving, []
        for command_id in saving:
            run.board.durable(command_id, path.name)

    def give_up(self, run: AttachedRun, reason: str) -> None:
        """Fail the commands that requested a save."""
        saving, self._saving = self._saving, []
        for command_id in saving:
            run.board.failed(command_id, reason)

    def _apply(self, run: AttachedRun, step: int, command: Command, changes: dict[str, float]) -> None:
        name, session = command.command, run.session
        run.board.applied(command.command_id, step)
        data = {"command_id": command.command_id, "step": step}
        session.journal.event("control.applied", f"{name} acts at the end of step {step}.", data=data)
        if name == "abort":
            _write(run, state="aborted", intent="abort", step=step)
            run.board.close("the training was aborted")
            raise SystemExit(ABORTED)
        if name in SAVING:
            self._saving.append(command.command_id)
            self._asked_at = time.perf_counter()
        if name in _STOPPING:
            self._intent = "preempt" if command.command_id.startswith(PREFIX) else "pause"
            _write(run, intent=self._intent if name == "pause" else "stop", phase="stopping", step=step)
        self.pausing = self.pausing or name == "pause"
        if name == "set":
            changes.update({key: value for key, value in command.data.items() if value is not None})
            # The other ranks apply the same values; only one may write the file.
            if session.rank == 0:
                self._keep(changes)

    def _keep(self, changes: Mapping[str, float]) -> None:
        try:
            write_json(self._folder / _OVERRIDES, {**overrides(self._folder), **changes}, sync=True)
        except OSError as error:
            logger.warning("The change applies to this launch only, it could not be recorded: %s", error)

    def _record(self, run: AttachedRun, path: Path, step: int, stall_s: float) -> None:
        # The journal must not be older than the checkpoint: a resume continues both from this step.
        run.session.journal.sync()
        made = finish_checkpoint(path, launch=run.session.journal.launch)
        run.session.journal.checkpoint(step, path.name, made.digest, made.size_bytes, round(stall_s, 4))
        entry = {"path": str(path), "step": step, "digest": made.digest, "bytes": made.size_bytes}
        known = [item for item in _saved(self._folder) if item.get("path") != str(path)]
        write_json(self._folder / _SAVED, {"saved": [*known, entry]}, sync=True)
        if self.pausing:
            run.session.journal.sync()
            run.session.status.write(state="paused", intent=self._intent, step=step)


def _write(run: AttachedRun, **fields: Any) -> None:
    try:
        run.session.status.write(**fields)
    except OSError as error:
        # A full disk must not keep a loop from stopping.
        logger.warning("The status could not be written: %s", error)


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint that the loop reported with `saved`."""
    # Newest first: an older checkpoint is only a fallback.
    for item in sorted(_saved(folder), key=lambda item: -int(item["step"])):
        path = Path(item["path"])
        fault = invalid_reason(path) if path.is_dir() else "it does not exist any more"
        manifest = read_json(path / "manifest.json") or {}
        if fault is None and manifest.get("digest") == item["digest"]:
            return Checkpoint(path, int(item["step"]), item["digest"], int(item["bytes"]))
        logger.warning("Checkpoint %s is skipped: %s; using the one before it", path.name, fault or "it has changed")
    return None


def _saved(folder: Path) -> list[dict[str, Any]]:
    found = (read_json(folder / _SAVED) or {}).get("saved")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def overrides(folder: Path) -> dict[str, float]:
    """Return what `set` has changed in earlier launches."""
    found = read_json(folder / _OVERRIDES) or {}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}
