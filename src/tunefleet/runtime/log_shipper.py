"""Delivers journal and log of a job, resuming where the last delivery stopped.

The position is stored in `shipped.json`. That file may lag behind or be lost: a receiver ignores records that it has,
and reports its position if records are missing. So nothing is lost or duplicated, whichever process is killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)
from tenacity.nap import sleep_using_event

from tunefleet.errors import OffsetConflict, TunefleetError, UnreachableError
from tunefleet.runtime import job_log
from tunefleet.schemas.job_folder import JobFolder, Shipped
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

_MAX_LINES: Final = 2000
_MAX_BYTES: Final = 3 << 18
_BACKOFF_S: Final = (0.1, 5.0)


class Sink(Protocol):
    """Receiver of a shipper."""

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Deliver records and return the receiver's cursor. Raises `OffsetConflict` if earlier records are missing."""

    def log(self, offset: int, data: bytes) -> int:
        """Deliver a chunk of the log and return the receiver's cursor. Raises `OffsetConflict` likewise."""


@dataclass(slots=True)
class _Position:
    """Position in a launch's journal: the next record, and its byte offset."""

    seq: int = 0
    offset: int = 0


@dataclass(slots=True)
class _State:
    launches: dict[str, _Position] = field(default_factory=dict)
    log_base: int = 0
    log_offset: int = 0
    log_skipped: int = 0
    attempt: int = 0


class JournalShipper:
    """Delivers one job folder in the background."""

    def __init__(self, folder: JobFolder, sink: Sink, *, interval_s: float = 0.2) -> None:
        self._folder = folder
        self._sink = sink
        self._interval_s = interval_s
        self._state = _read(folder)
        self._delivering = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ship-{folder.root.name}", daemon=True)

    @property
    def cursors(self) -> Mapping[str, int]:
        """Launch → sequence number after its last delivered record."""
        return {launch: position.seq for launch, position in dict(self._state.launches).items()}

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current request; the remainder stays for the next shipper on this folder."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def flush(self, timeout_s: float) -> bool:
        """Deliver everything written so far; False if not all of it arrived in time."""
        deadline = time.monotonic() + timeout_s
        pause = _BACKOFF_S[0]
        while True:
            try:
                if self._deliver(lambda: time.monotonic() >= deadline, patience_s=timeout_s):
                    return True
            except TunefleetError as error:
                logger.debug("Delivery of %s failed: %s", self._folder.root.name, error)
            if time.monotonic() + pause >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _BACKOFF_S[1])

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._deliver_patiently()
            except TunefleetError as error:
                # Only if it is stopped while the receiver is unreachable.
                logger.debug("Delivery of %s was stopped: %s", self._folder.root.name, error)
            except Exception:
                logger.exception("Delivery of %s failed, retrying.", self._folder.root.name)
                self._stopping.wait(_BACKOFF_S[1])

    def _deliver_patiently(self) -> None:
        initial, longest = _BACKOFF_S
        for attempt in Retrying(
            retry=retry_if_exception_type(TunefleetError),
            wait=wait_exponential(multiplier=initial, max=longest) + wait_random(0, initial),
            stop=stop_when_event_set(self._stopping),
            sleep=sleep_using_event(self._stopping),
            before_sleep=self._warn,
            reraise=True,
        ):
            with attempt:
                self._deliver(self._stopping.is_set)

    def _warn(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            logger.warning("Could not deliver %s, retrying: %s", self._folder.root.name, state.outcome.exception())

    def _deliver(self, over: Callable[[], bool], *, patience_s: float = -1) -> bool:
        """Deliver everything in the files until `over`; returns whether that was everything.

        The position is stored even if a part fails.

        Args:
            patience_s: How long to wait for another thread that delivers; -1 for no limit.
        """
        if not self._delivering.acquire(timeout=patience_s):
            return False
        before = self._saved()
        try:
            return all(self._ship_journal(file, over) for file in _journals(self._folder)) and self._ship_log(over)
        finally:
            self._note(before)
            self._delivering.release()

    def _note(self, before: dict[str, object]) -> None:
        now = self._saved()
        if now == before:
            return
        try:
            write_json(self._folder.shipped_json, now)
        except OSError as error:
            # Such as a full disk. Not needed for correctness: the receiver knows its own position.
            logger.warning("Could not store the delivery position of %s: %s", self._folder.root.name, error)

    def _ship_journal(self, file: Path, over: Callable[[], bool]) -> bool:
        position = self._state.launches.setdefault(file.stem, _Position())
        while not over():
            lines, size = _complete_lines(file, position.offset)
            if not lines:
                return True
            try:
                cursor = self._sink.journal(file.stem, position.seq, lines)
            except OffsetConflict as conflict:
                logger.info("The receiver is at record %d of %s.", conflict.cursor, file.stem)
                cursor = conflict.cursor
            if cursor == position.seq:
                raise UnreachableError(f"The receiver accepts no records of {file.stem} from {cursor} on.")
            if cursor == position.seq + len(lines):
                position.seq, position.offset = cursor, position.offset + size
            else:
                # It has fewer or more records than known here: its database or `shipped.json` was lost.
                _seek(position, file, cursor)
        return False

    def _ship_log(self, over: Callable[[], bool]) -> bool:
        while data := self._log_piece():
            if over():
                return False
            before = self._state.log_offset
            try:
                self._state.log_offset = self._sink.log(before, data)
            except OffsetConflict as conflict:
                if conflict.cursor < before:
                    self._state.log_skipped = 0  # lost bytes may still be in the log
                self._state.log_offset = conflict.cursor
            if self._state.log_offset == before:
                raise UnreachableError(f"The receiver accepts no log from byte {before} on.")
        return True

    def _log_piece(self) -> bytes:
        begin = self._state.log_base + self._state.log_offset
        at, data = job_log.read(self._folder.log, begin + self._state.log_skipped, _MAX_BYTES)
        if at - begin != self._state.log_skipped:
            # Stored before the delivery: the agent's sink reads it to locate lines in the log.
            before = self._saved()
            self._state.log_skipped = at - begin
            self._note(before)
        return data

    def _saved(self) -> dict[str, object]:
        launches = self._state.launches.items()
        return Shipped(
            cursors={launch: position.seq for launch, position in launches},
            offsets={launch: position.offset for launch, position in launches},
            log_base=self._state.log_base,
            log_offset=self._state.log_offset,
            log_skipped=self._state.log_skipped,
            attempt=self._state.attempt,
        ).model_dump(mode="json")


def _read(folder: JobFolder) -> _State:
    try:
        shipped = Shipped.model_validate(read_json(folder.shipped_json) or {})
    except ValidationError as error:
        logger.warning("Could not read %s, delivering everything again: %s", folder.shipped_json, summary(error))
        shipped = Shipped()
    launches = {
        launch: _Position(seq, shipped.offsets[launch])
        for launch, seq in shipped.cursors.items()
        if launch in shipped.offsets
    }
    job = read_json(folder.job_json) or {}
    attempt = int(job.get("attempt") or 0)
    # Each attempt's log is a separate stream for the receiver; it starts at the size of the file at the first launch.
    offset, skipped = (shipped.log_offset, shipped.log_skipped) if shipped.attempt == attempt else (0, 0)
    return _State(launches, int(job.get("log_base") or 0), offset, skipped, attempt)


def _journals(folder: JobFolder) -> list[Path]:
    """Return the journals, oldest launch first: the file of an ended launch is not written any more."""
    return sorted(folder.journal_dir.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)


def _complete_lines(file: Path, offset: int) -> tuple[list[str], int]:
    """Return the records from an offset and their size in bytes; an incomplete last line is left for later."""
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(_MAX_BYTES)
        # A single record may be larger than the limit; it is read completely.
        while data and b"\n" not in data and (more := stream.read(_MAX_BYTES)):
            data += more
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1][:_MAX_LINES]
    return [line.decode(errors="replace") for line in lines], sum(len(line) + 1 for line in lines)


def _seek(position: _Position, file: Path, cursor: int) -> None:
    """Move to a record, whose number is its line number."""
    with file.open("rb") as stream:
        offset = sum(len(line) for _, line in zip(range(cursor), stream, strict=False))
    position.seq, position.offset = cursor, offset
