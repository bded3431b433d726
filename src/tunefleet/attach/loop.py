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
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from . import identity, world
from .attached import AttachedRun
from .board import SAVING, Command
from .checkpoints import Checkpoint, fault_of, finish_checkpoint
from .claim import jobs_dir
from .endpoint import safe_job_id
from .files import read_json, write_json
from .journal import plain_values
from .meeting import Meeting
from .ranks import Decider, decider_for
from .trainings import Training

logger = logging.getLogger("tunefleet.control")

_SAVED = "saved.json"
_STOPPING = ("graceful_stop", "save_and_stop", "pause")


@dataclass(frozen=True)
class Asked:
    """What the loop is asked for at the end of a step.

    Args:
        save: Save a checkpoint now, and say so with `saved`.
        evaluate: Evaluate now.
        stop: Leave the loop; after the save, if that is asked for as well.
        values: What `set` has changed since the last step: `learning_rate`, `logging_steps` and so on.
    """

    save: bool = False
    evaluate: bool = False
    stop: bool = False
    values: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self.save or self.evaluate or self.stop or bool(self.values)


_NOTHING = Asked()


class Control:
    """Steers one loop; made by `control`.

    Args:
        job_id: Its name.
        folder: Its job folder.
        max_steps: How many steps it will take, if that is known.
        http: Whether to open a port; without, commands are files.
    """

    def __init__(self, job_id: str, folder: Path, max_steps: int, *, http: bool) -> None:
        self.job_id = safe_job_id(job_id)
        self.folder = folder
        self._max_steps = max_steps
        self._http = http
        self._run: AttachedRun | None = None
        self._decider: Decider | None = None
        self._step = 0
        self._asked_at = time.perf_counter()
        self._saving: list[str] = []
        self._pausing = False
        self._meeting: Meeting | None = None
        self.values: dict[str, float] = {}
        self.resume: Checkpoint | None = None

    @property
    def step_reached(self) -> int:
        """The step of the checkpoint to resume from; 0 if there is none."""
        return self.resume.step if self.resume is not None else 0

    def __enter__(self) -> Control:
        """Make the job findable, and look for the checkpoint to go on from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.resume = _newest(self.folder)
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
        self.values = _overrides(self.folder)
        if world.rank() == 0:
            self._refuse_a_second()
            write_json(self.folder / "job.json", job)
        self._run = AttachedRun.open(self.folder, job, Training(1, self.folder, self.resume))
        self._begin()
        return self

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
        if logs:
            self._record(run, logs, epoch)
        commands = self._decider.due(step)
        return self._act(run, commands) if commands else _NOTHING

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
                self._finish(run, Path(path).resolve(), self._step if step is None else step)
            except OSError as error:
                fault = error
        whole = fault is None if meeting is None else meeting.tell(whole=fault is None)
        if not whole:
            self._pausing = False
            raise fault or OSError(f"{path} could not be made durable; rank 0 says why")
        if self._pausing:
            run.board.close("the training was paused")
            raise SystemExit(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the loop ended; what was asked for and not done has failed."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
                run.on_exception(error)
        finally:
            for command_id in self._saving:
                run.board.failed(command_id, "the loop ended without saying that it had saved")
            self._saving = []
            run.on_exit()

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

    def _act(self, run: AttachedRun, commands: Any) -> Asked:
        changes: dict[str, float] = {}
        for command in commands:
            self._apply(run, command, changes)
        names = {command.command for command in commands}
        self.values.update(changes)
        return Asked(
            save=bool(names & set(SAVING)),
            evaluate="evaluate" in names,
            stop=bool(names & set(_STOPPING)),
            values=changes,
        )

    def _apply(self, run: AttachedRun, command: Command, changes: dict[str, float]) -> None:
        name, step, session = command.command, self._step, run.session
        run.board.applied(command.command_id, step)
        data = {"command_id": command.command_id, "step": step}
        session.journal.event("control.applied", f"{name} acts at the end of step {step}.", data=data)
        if name == "abort":
            session.status.write(state="aborted", intent="abort", step=step)
            run.board.close("the training was aborted")
            raise SystemExit(0)
        if name in SAVING:
            self._saving.append(command.command_id)
            self._asked_at = time.perf_counter()
        if name in _STOPPING:
            session.status.write(intent="pause" if name == "pause" else "stop", phase="stopping", step=step)
        self._pausing = self._pausing or name == "pause"
        if name == "set":
            changes.update({key: value for key, value in command.data.items() if value is not None})
            if session.rank == 0:
                write_json(self.folder / "overrides.json", {**_overrides(self.folder), **changes}, sync=True)

    def _finish(self, run: AttachedRun, path: Path, step: int) -> None:
        stall_s = time.perf_counter() - self._asked_at if self._saving else 0.0
        saving, self._saving = self._saving, []
        run.session.journal.sync()
        try:
            made = finish_checkpoint(path)
        except OSError as error:
            for command_id in saving:
                run.board.failed(command_id, f"{path.name} could not be made durable: {error}")
            raise
        run.session.journal.checkpoint(step, path.name, made.digest, made.size_bytes, round(stall_s, 4))
        entry = {"path": str(path), "step": step, "digest": made.digest, "bytes": made.size_bytes}
        known = [item for item in _saved(self.folder) if item.get("path") != str(path)]
        write_json(self.folder / _SAVED, {"saved": [*known, entry]}, sync=True)
        if self._pausing:
            run.session.journal.sync()
            run.session.status.write(state="paused", intent="pause", step=step)
        for command_id in saving:
            run.board.durable(command_id, path.name)

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
        folder: Its job folder; default: `tunefleet-runs/<job_id>` here.
        http: Whether to open a port on loopback; without, commands are files.

    Raises:
        ValueError: If the name could not be a file's.
    """
    return Control(job_id, Path(folder or Path("tunefleet-runs", job_id)).resolve(), max_steps, http=http)


def _newest(folder: Path) -> Checkpoint | None:
    for item in sorted(_saved(folder), key=lambda item: -int(item["step"])):
        path = Path(item["path"])
        fault = fault_of(path) if path.is_dir() else "it is gone"
        manifest = read_json(path / "manifest.json") or {}
        if fault is None and manifest.get("digest") == item["digest"]:
            return Checkpoint(path, int(item["step"]), item["digest"], int(item["bytes"]))
        logger.warning("%s is not resumed from: %s; the one before it is used", path.name, fault or "it has changed")
    return None


def _saved(folder: Path) -> list[dict[str, Any]]:
    found = (read_json(folder / _SAVED) or {}).get("saved")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _overrides(folder: Path) -> dict[str, float]:
    found = read_json(folder / "overrides.json") or {}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}
