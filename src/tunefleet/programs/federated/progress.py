"""Where a worker stands with its federation: kept in every checkpoint, and what was taken by the server beside them.

Rows are counted from the training's beginning. An update weighs the rows beyond those that the server has taken
already, so a resumed training, which goes over some of them a second time, counts none of them twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from tunefleet.attach.files import read_json, write_json

_TAKEN: Final = "taken.json"


@dataclass
class Progress:
    """Where a worker stands.

    Args:
        version: Of the global adapter: the newest that was copied in; 0 for none.
        rows: Trained on, over all ranks, since the training began.
        taken: Of those, how many are in updates that the server has taken.
        taken_step: The step of the last of them.
    """

    version: int = 0
    rows: int = 0
    taken: int = 0
    taken_step: int = 0

    @classmethod
    def of(cls, saved: object) -> Progress:
        """Read what a checkpoint has; what is not there begins at 0."""
        known = {field.name for field in fields(cls)}
        given = saved if isinstance(saved, dict) else {}
        return cls(**{name: int(value) for name, value in given.items() if name in known})

    def plain(self) -> dict[str, int]:
        """Return it as JSON has it."""
        return asdict(self)


class TakenFile:
    """What the server has taken from this worker, written down at once; it outlives a crash that no checkpoint saw.

    Args:
        folder: Where it lies.
        federation: Its id; a file of another one does not count.
        worker: Who it is about.
    """

    def __init__(self, folder: Path, federation: str, worker: str) -> None:
        self._file = folder / _TAKEN
        self._whose = {"federation": federation, "worker": worker}

    def catch_up(self, progress: Progress) -> None:
        """Bring what a checkpoint says to what has been taken since."""
        saved = read_json(self._file) or {}
        if {name: saved.get(name) for name in self._whose} == self._whose and int(saved["taken"]) > progress.taken:
            progress.taken, progress.taken_step = int(saved["taken"]), int(saved["taken_step"])

    def note(self, progress: Progress) -> None:
        """Write down what was taken, so that it survives a power cut."""
        data: dict[str, Any] = {**self._whose, "taken": progress.taken, "taken_step": progress.taken_step}
        write_json(self._file, data, sync=True)

    def forget(self) -> None:
        """Begin anew: another training."""
        self._file.unlink(missing_ok=True)
