"""`status.json`: the state of a trainer. Always complete, and never changed after a final state.

`update` only stores the values in memory; the journal's thread writes them at most once a second. `write` writes
immediately: it is for changes of state, which must be on disk before what they announce happens.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import read_json, write_json

logger = logging.getLogger(__name__)

FINAL_STATES = frozenset({"completed", "stopped", "paused", "aborted", "failed", "killed"})
INTERVAL_S = 1.0


class StatusFile:
    """The status of one launch.

    Args:
        folder: The job folder; None writes nothing, for ranks that do not report.
        mirrors: Further files that get the same content, such as the copy in the endpoint folder.
    """

    def __init__(self, folder: str | Path | None, mirrors: Sequence[Path] = ()) -> None:
        self._paths = [Path(folder) / "status.json", *mirrors] if folder is not None else []
        self._lock = threading.RLock()
        self._written_at = 0.0
        self._dirty = False
        self._pid = os.getpid()
        self._logged: deque[tuple[int, Mapping[str, float | str], float | None]] = deque()
        self._fields: dict[str, Any] = {
            "state": "starting",
            "phase": "loading",
            "step": 0,
            "max_steps": 0,
            "eta_s": None,
            "at": 0.0,
            "pid": self._pid,
            "intent": None,
            "error": None,
            "error_kind": None,
            "traceback": None,
            "launch": None,
            "records": None,
            "values": {},
        }

    @property
    def fields(self) -> dict[str, Any]:
        """A copy of the current values, written or not."""
        with self._lock:
            self._take_logged()
            return {**self._fields, "values": dict(self._fields["values"])}

    @property
    def final(self) -> bool:
        """Whether the state will never change again."""
        return self._fields["state"] in FINAL_STATES

    def add_mirror(self, path: Path) -> None:
        """Write the same content to a further file from now on."""
        with self._lock:
            self._paths.append(path)

    def log(self, step: int, values: Mapping[str, float | str], *, epoch: float | None = None) -> None:
        """Store the values logged at a step, like `update`, but without its lock, for the training thread.

        They are merged when the status is next read, written or updated.

        Args:
            step: The step at whose end they were logged.
            values: Name → value; must not be changed afterwards.
            epoch: As a fraction; stored as one of the values.
        """
        self._logged.append((step, values, epoch))

    def update(self, *, values: Mapping[str, float | str] | None = None, **fields: Any) -> None:
        """Store new values; they are on disk within about a second."""
        with self._lock:
            self._take_logged()
            if self.final:
                return
            self._fields.update(fields)
            if values:
                self._fields["values"] = {**self._fields["values"], **values}
            self._dirty = True

    def write(self, *, values: Mapping[str, float | str] | None = None, **fields: Any) -> None:
        """Write new values immediately; a final state is made durable, and a state after it is ignored.

        Args:
            values: Last logged values by name; merged into the existing ones.
            fields: Fields of `schemas.job_folder.JobStatus`.
        """
        with self._lock:
            if self.final and "state" in fields:
                logger.debug("The job is %s; %s is not recorded", self._fields["state"], fields["state"])
                return
            before = self.fields
            self.update(values=values, **fields)
            try:
                self._flush()
            except OSError:
                if self.final:
                    # Not recorded, so not final: the next state may be the failure of the disk.
                    self._fields = before
                raise

    def finish(self) -> None:
        """Record the end: `stopped` if a stop was requested, else `completed`."""
        self.write(state="stopped" if self._fields["intent"] == "stop" else "completed", phase="finishing")

    def begin_again(self) -> None:
        """Undo the end of a training run, because the same process begins another."""
        with self._lock:
            self._take_logged()  # values after the end do not belong to the next run
            if self.final:
                none = dict.fromkeys(("intent", "error", "error_kind", "traceback"))
                self._fields.update(none, state="starting", phase="loading")

    def take_back(self) -> str:
        """Continue from what a subprocess has written to the file; return the state that it left.

        A final state of the subprocess is not the end of the job, except `paused` and `aborted`.
        """
        with self._lock:
            self._take_logged()
            stored = read_json(self._paths[0]) if self._paths else None
            found = {name: value for name, value in (stored or {}).items() if name in self._fields}
            state = str(found.get("state", self._fields["state"]))
            self._fields.update(found, pid=self._pid)
            if state not in ("paused", "aborted"):
                self._fields["state"] = "running"
            return state

    def fail(self, error: str, kind: str, traceback: str | None = None) -> None:
        """Record a failure.

        Args:
            error: One sentence for the user.
            kind: `input`, `oom`, `disk`, `network` or `bug`.
            traceback: The traceback, for developers.
        """
        self.write(state="failed", error=error, error_kind=kind, traceback=traceback)

    def flush_if_due(self) -> None:
        """Write stored values, at most once a second; called by the journal's thread."""
        with self._lock:
            self._take_logged()
            if self._dirty and time.monotonic() - self._written_at >= INTERVAL_S:
                self._flush()

    def flush(self) -> None:
        """Write stored values now."""
        with self._lock:
            self._take_logged()
            if self._dirty:
                self._flush()

    # `deque` operations are atomic, which is why `log` needs no lock.
    def _take_logged(self) -> None:
        while self._logged:
            step, values, epoch = self._logged.popleft()
            if not self.final:
                self._fields["step"] = step
                self._fields["values"].update(values if epoch is None else {**values, "epoch": epoch})
                self._dirty = True

    def _flush(self) -> None:
        # A forked child has a copy of the object, but the file belongs to its parent.
        if os.getpid() != self._pid:
            return
        # Set before the write: a full disk must not be retried at every tick.
        self._written_at = time.monotonic()
        self._fields["at"] = time.time()
        self._dirty = False
        if not self._paths:
            return
        first, *mirrors = self._paths
        # Set again in case the write fails, so that the next flush retries it.
        self._dirty = True
        write_json(first, self._fields, sync=self.final)
        self._dirty = False
        # A copy is a convenience: its failure must not fail the status.
        for mirror in mirrors:
            try:
                write_json(mirror, self._fields)
            except OSError as error:
                logger.debug("The copy %s was not written: %s", mirror, error)
