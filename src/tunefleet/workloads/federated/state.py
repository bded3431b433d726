"""Where a worker stands with its federation: kept in every checkpoint, and what was taken by the server beside them.

Rows are counted from the training's beginning. An update weighs the rows beyond those that the server has taken
already, so a resumed training, which goes over some of them a second time, counts none of them twice.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from tunefleet.schemas.federated import UpdateCreate
from tunefleet.trainer_control.files import read_json, write_json

logger = logging.getLogger("tunefleet.federation")

_TAKEN: Final = "taken.json"


@dataclass
class Progress:
    """Where a worker stands.

    Args:
        version: Of the global adapter: the newest that was copied in; 0 for none.
    """

    version: int = 0
    rows: int = 0
    taken: int = 0
    taken_step: int = 0
    given_up: int = 0

    @classmethod
    def of(cls, saved: object) -> Progress:
        """Read what a checkpoint has; what is not there begins at 0."""
        known = {field.name for field in fields(cls)}
        given = saved if isinstance(saved, dict) else {}
        return cls(**{name: int(value) for name, value in given.items() if name in known})

    def know_taken(self, rows: int) -> None:
        """Hear from the server that it has taken more than a checkpoint or a file on this machine knows of."""
        # Nothing is written back where nothing changes: another thread counts on meanwhile.
        if rows > self.taken:  # noqa: PLR1730
            self.taken = rows

    def plain(self) -> dict[str, int]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Intent:
    """An update that the server may have heard of, or not: what was going to be said, before it was."""

    rows: int
    body: UpdateCreate


class TakenFile:
    """What the server has taken from this worker, written down at once; it outlives a crash that no checkpoint saw."""

    def __init__(self, folder: Path, federation: str, worker: str) -> None:
        self._file = folder / _TAKEN
        self._whose = {"federation": federation, "worker": worker}

    def catch_up(self, progress: Progress) -> Intent | None:
        """Bring what a checkpoint says to what has been taken since.

        Returns:
            What was being said when the process ended, if anything: it is to be said again, in the same words. What
            another version of this program was going to say may not be readable; its rows go with the next update.
        """
        saved = read_json(self._file) or {}
        if {name: saved.get(name) for name in self._whose} != self._whose:
            return None
        if int(saved["taken"]) > progress.taken:
            progress.taken, progress.taken_step = int(saved["taken"]), int(saved["taken_step"])
        intent = saved.get("intent")
        if intent is None:
            return None
        try:
            found = Intent(int(intent["rows"]), UpdateCreate.model_validate(intent["body"]))
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("What was being sent before this start cannot be read; the next update has it: %s", error)
            return None
        return found if found.rows > progress.taken else None

    def note(self, progress: Progress, intent: Intent | None = None) -> None:
        """Write down what was taken, and what is about to be said, so that it survives a power cut."""
        data: dict[str, Any] = {**self._whose, "taken": progress.taken, "taken_step": progress.taken_step}
        if intent is not None:
            data["intent"] = {"rows": intent.rows, "body": intent.body.model_dump(mode="json")}
        write_json(self._file, data, sync=True)

    def forget(self) -> None:
        """Begin anew: another training."""
        self._file.unlink(missing_ok=True)
