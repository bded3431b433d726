"""What commands do to a loop that has no callbacks, and which checkpoints it has saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .attached import AttachedRun
from .board import ABORTED, SAVING, Command
from .checkpoints import Checkpoint, fault_of, finish_checkpoint
from .files import read_json, write_json
from .preemption import PREFIX

logger = logging.getLogger("tunefleet.control")

_SAVED = "saved.json"
_OVERRIDES = "overrides.json"
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


NOTHING = Asked()


class Steering:
    """What was asked of one loop, and what became of it.

    Args:
        folder: Its job folder.
    """

    def __init__(self, folder: Path) -> None:
        self.pausing = False
        self._intent = "pause"
        self._folder = folder
        self._saving: list[str] = []
        self._asked_at = 0.0

    def act(self, run: AttachedRun, step: int, commands: Sequence[Command]) -> Asked:
        """Note that commands act at the end of a step, and return what the loop has to do for them.

        Raises:
            SystemExit: If one is an abort.
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
        """Make what the loop has saved durable, and answer who asked for it.

        Raises:
            OSError: If that cannot be done; then those who asked are told.
        """
        stall_s = time.perf_counter() - self._asked_at if self._saving else 0.0
        try:
            self._record(run, path, step, stall_s)
        except OSError as error:
            self.give_up(run, f"{path.name} could not be made durable: {error}")
            raise
        saving, self._saving = self._saving, []
        for command_id in saving:
            run.board.durable(command_id, path.name)

    def give_up(self, run: AttachedRun, reason: str) -> None:
        """Tell those who asked for a save that none comes."""
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
            if session.rank == 0:
                self._keep(changes)

    def _keep(self, changes: Mapping[str, float]) -> None:
        try:
            write_json(self._folder / _OVERRIDES, {**overrides(self._folder), **changes}, sync=True)
        except OSError as error:
            logger.warning("What was set holds for this launch only, it could not be written down: %s", error)

    def _record(self, run: AttachedRun, path: Path, step: int, stall_s: float) -> None:
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
        # A full disk must not keep a loop from doing what it was asked for.
        logger.warning("The status could not be written: %s", error)


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that the loop has said it saved, and that is whole."""
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


def overrides(folder: Path) -> dict[str, float]:
    """Return what `set` has changed in earlier launches."""
    found = read_json(folder / _OVERRIDES) or {}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}
