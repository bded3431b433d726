"""A worker's progress in a federation: saved in every checkpoint, with accepted uploads in a separate file.

Rows are counted from the start of the run. The weight of an update is the number of rows beyond those that the server
has already accepted, so a resumed run, which trains on some rows again, counts none of them twice.
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
    """A worker's progress.

    Args:
        version: The newest version of the global adapter that was copied; 0 for none.
    """

    version: int = 0
    rows: int = 0
    taken: int = 0
    taken_step: int = 0
    given_up: int = 0

    @classmethod
    def of(cls, saved: object) -> Progress:
        """Read the progress in a checkpoint; missing fields start at 0."""
        known = {field.name for field in fields(cls)}
        given = saved if isinstance(saved, dict) else {}
        return cls(**{name: int(value) for name, value in given.items() if name in known})

    def raise_taken(self, rows: int) -> None:
        """Raise the number of accepted rows to the server's number, which may be ahead of local files."""
        # Not `max`: it would write back an old value over the one that the upload thread sets meanwhile.
        if rows > self.taken:  # noqa: PLR1730
            self.taken = rows

    def plain(self) -> dict[str, int]:
        """Return the progress as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Intent:
    """An update that was about to be sent: the server may or may not have received it."""

    rows: int
    body: UpdateCreate


class TakenFile:
    """A file with the updates that the server accepted, written immediately, so that a crash does not lose them."""

    def __init__(self, folder: Path, federation: str, worker: str) -> None:
        self._file = folder / _TAKEN
        self._whose = {"federation": federation, "worker": worker}

    def catch_up(self, progress: Progress) -> Intent | None:
        """Update the progress of a checkpoint with uploads accepted since.

        Returns:
            The update that was in transit when the process ended, if any; it must be sent again unchanged. If another
            version of this program wrote it and it cannot be read, its rows are part of the next update.
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
            logger.warning("The update in transit cannot be read; its rows are part of the next update: %s", error)
            return None
        return found if found.rows > progress.taken else None

    def note(self, progress: Progress, intent: Intent | None = None) -> None:
        """Save the accepted uploads and the update about to be sent, durably."""
        data: dict[str, Any] = {**self._whose, "taken": progress.taken, "taken_step": progress.taken_step}
        if intent is not None:
            data["intent"] = {"rows": intent.rows, "body": intent.body.model_dump(mode="json")}
        write_json(self._file, data, sync=True)

    def forget(self) -> None:
        """Delete the file, for a new run."""
        self._file.unlink(missing_ok=True)
