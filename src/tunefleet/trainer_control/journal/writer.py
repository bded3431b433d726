"""The journal of one launch: an append-only file of JSON lines, at hardly any cost for the training thread.

A call puts a tuple into a queue (about a microsecond); a thread encodes and appends it a fifth of a second later.
`sync` does so immediately and makes it durable: it is called before a checkpoint's manifest and before the end, so that
everything a resume or a result relies on is on disk. Independent of network and server.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from .. import files

logger = logging.getLogger(__name__)

FLUSH_S = 0.2
PROGRESS_S = 1.0
LIMIT_BYTES = 1 << 30
"""For all journals of a job: the closer they get to it, the fewer metrics are recorded."""
_RAREST = 1 << 20
Probe = Callable[[], Mapping[str, float | None]]
_NOT_A_NUMBER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class JournalWriter:
    """Appends the records of one launch to `journal/<launch>.jsonl`.

    Args:
        launch: Id of the launch; names the file.
        attempt: Number of the attempt; 0 if attempts are not counted.
        from_step: The step at which the launch resumes.
        checkpoint: Digest of the checkpoint to resume from.
        parent: The launch that made that checkpoint, if it is known.
        on_tick: Called by the writer's thread after each flush; for work that must not block training.
    """

    def __init__(
        self,
        folder: str | Path,
        launch: str,
        attempt: int = 0,
        from_step: int = 0,
        checkpoint: str | None = None,
        *,
        parent: str | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self.launch: str | None = launch
        self.path = Path(folder) / "journal" / f"{launch}.jsonl"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._queue: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._unwritten = b""
        self._counts: Counter[tuple[str, frozenset[str]]] = Counter()
        self._thinned = False
        self._progress: tuple[dict[str, Any], Probe | None] | None = None
        self._probe_failed = False
        self._pid = os.getpid()
        self._on_tick = on_tick
        self._begin()
        if self._next_seq == 0:
            first = {"launch": launch, "attempt": attempt, "from_step": from_step, "checkpoint": checkpoint}
            self._put("launch", {**first, "parent": parent, "pid": self._pid})

    def _begin(self) -> None:
        """Continue at the end of the file."""
        self._progress_at = -math.inf
        # Opened for append: after `lent`, another process has written to the file.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size, self._next_seq = self._cut_torn_tail()
        self._others = sum(file.stat().st_size for file in self.path.parent.glob("*.jsonl") if file != self.path)
        self._closed = False
        self._stop = threading.Event()
        turn = (self._stop, FLUSH_S, self._turn, "The journal cannot be written", logger)
        self._thread = threading.Thread(target=files.until, args=turn, name="tunefleet-journal", daemon=True)
        self._thread.start()

    @property
    def seq(self) -> int:
        """The sequence number of the next record."""
        return self._next_seq

    def metric(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        series: str = "train",
        epoch: float | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        """Record values logged at the end of a step.

        Args:
            values: Name → number; other values are skipped.
            series: The training run of the process.
            window: First and last step that the values cover.
        """
        fields = {"series": series, "step": step, "epoch": epoch, "window": window, "values": plain_values(values)}
        self._put("metric", fields)

    def progress(self, phase: str, *, probe: Probe | None = None, **fields: float | None) -> None:
        """Record progress; only the newest record of each second is written.

        Args:
            probe: Returns further fields when the record is written, in the writer's thread: for queries that are too
                slow for the training thread.
            fields: Those of `schemas.journal.ProgressRecord`.
        """
        self._progress = _record("progress", {"phase": phase, **fields}), probe

    def event(self, name: str, message: str, level: str = "info", data: Mapping[str, Any] | None = None) -> None:
        """Record an event for the task's history.

        Args:
            name: Dotted name, such as `training.started`.
            level: `info`, `warning` or `error`.
            data: Further fields; JSON.
        """
        self._put("event", {"name": name, "message": message, "level": level, "data": dict(data or {})})

    def checkpoint(self, step: int, name: str, digest: str, size_bytes: int, stall_s: float = 0.0) -> None:
        """Record that a checkpoint has its manifest."""
        fields = {"step": step, "name": name, "digest": digest, "size_bytes": size_bytes, "stall_s": stall_s}
        self._put("checkpoint", fields)

    def prediction(self, step: int, index: int, prompt: str, output: str, reference: str | None = None) -> None:
        """Record text that the model generated for one sample."""
        fields = {"step": step, "index": index, "prompt": prompt, "output": output, "reference": reference}
        self._put("prediction", fields)

    def sync(self) -> None:
        """Append all records and make them durable.

        Raises:
            OSError: If the file cannot be written; the records are kept and written again later.
        """
        if os.getpid() != self._pid or self._closed:
            return
        self._flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Sync and stop the writer; further records are dropped. May be called twice."""
        if os.getpid() != self._pid or self._closed:
            return
        self._stop.set()
        if threading.current_thread() is not self._thread:
            # Bounded: a hung file system must not block the exit.
            self._thread.join(timeout=5.0)
        try:
            self._take_progress(now=math.inf)
            self.sync()
        finally:
            self._closed = True
            os.close(self._fd)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let another process write the launch's records while the body runs; then continue after them."""
        self.close()
        try:
            yield
        finally:
            self._begin()

    def _put(self, kind: str, fields: dict[str, Any]) -> None:
        self._queue.append(_record(kind, fields))

    def _take_progress(self, *, now: float) -> None:
        newest = self._progress
        if newest is None or now - self._progress_at < PROGRESS_S:
            return
        self._progress, self._progress_at = None, now
        record, probe = newest
        try:
            record.update(probe() if probe is not None else {})
        except Exception as error:  # noqa: BLE001 - a failed probe must not lose the progress record
            if not self._probe_failed:
                logger.warning("A progress record lacks its resource usage: %s", error)
            self._probe_failed = True
        self._queue.append(record)

    def _turn(self) -> None:
        # A full disk must not end reporting for good: unwritten records are kept.
        self._take_progress(now=time.monotonic())
        self._flush()
        if self._on_tick is not None:
            self._on_tick()

    def _flush(self) -> None:
        # `sync` runs in the training thread, `_turn` in the writer's; both must not number records at the same time.
        with self._lock:
            parts = [self._unwritten]
            while self._queue:
                record = self._queue.popleft()
                if self._is_left_out(record):
                    continue
                # Numbered when written, not when queued, so that dropped records leave no gap.
                record["seq"] = self._next_seq
                self._next_seq += 1
                parts.append(line_of(record))
            self._unwritten = b"".join(parts)
            if self._unwritten:
                self._append(self._unwritten)
                self._unwritten = b""

    def _is_left_out(self, record: dict[str, Any]) -> bool:
        """Return whether a record is dropped to save space: metrics only, and never those of an evaluation."""
        if record["type"] != "metric" or any(name.startswith("eval_") for name in record["values"]):
            return False
        used = self._others + self._size
        every = one_of(used)
        if every > 1 and not self._thinned:
            self._thinned = True
            message = (
                f"Points are missing from step {record['step']:,} on: the job's journals have reached {used:,} bytes "
                f"of their limit of {LIMIT_BYTES:,}, so metrics are recorded less often."
            )
            self._put("event", {"name": "journal.thinned", "message": message, "level": "warning", "data": {}})
        # Per curve: of two alternating kinds of records, one would otherwise be dropped completely.
        curve = (record["series"], frozenset(record["values"]))
        self._counts[curve] += 1
        return self._counts[curve] % every != 0

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # The file may hold half a line; the whole batch is written again later.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _cut_torn_tail(self) -> tuple[int, int]:
        """Cut an unfinished last line of a killed process; return the size and the next sequence number."""
        data = self.path.read_bytes()
        size = data.rfind(b"\n") + 1
        if size != len(data):
            os.ftruncate(self._fd, size)
        return size, data.count(b"\n")


def one_of(used_bytes: int) -> int:
    """Return n, where one of n points is recorded: it doubles each time half of the remaining space is used.

    Args:
        used_bytes: Bytes of all journals of the job.
    """
    every = 1
    while every < _RAREST and (LIMIT_BYTES - used_bytes) * 2 * every < LIMIT_BYTES:
        every *= 2
    return every


def _record(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"seq": 0, "at": time.time(), "type": kind, **fields}


def number(value: float) -> float | str:
    """Return a number as JSON can hold it: `NaN`, `Infinity` and `-Infinity` become strings."""
    return value if isfinite(value) else _NOT_A_NUMBER[str(value)]


def plain_values(values: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the values of a `logs` dictionary that can be recorded without a device sync.

    A tensor on a GPU is skipped, since reading it waits for the device; scalars of NumPy and of torch on the CPU count.
    """
    plain: dict[str, float | str] = {}
    for name, value in values.items():
        kind = type(value)
        if kind is float:
            plain[name] = value if isfinite(value) else number(value)
        elif kind is int or kind is str:
            plain[name] = value
        elif kind is bool or getattr(getattr(value, "device", None), "type", "cpu") == "cpu":
            try:
                plain[name] = number(float(value))
            except (TypeError, ValueError):
                logger.debug("The value of %s is not a number and is not recorded", name)
    return plain


def line_of(record: dict[str, Any]) -> bytes:
    """Encode a record; one that cannot be encoded is replaced, since a missing number would look like a lost record.

    The line ends with the CRC-32 of its other content, by which `runtime.journal_audit` detects damage on disk.
    """
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError):
        try:
            text = json.dumps(_without_nan(record), separators=(",", ":"), allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps(_unwritable(record, error), separators=(",", ":"))
    plain = text.encode()
    return plain[:-1] + b',"crc":%d}\n' % zlib.crc32(plain)


def _plain(value: Any) -> Any:
    # A scalar of NumPy or of torch; anything else becomes its text.
    item = getattr(value, "item", None)
    try:
        return str(value) if item is None else _without_nan(item())
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return number(float(value))
    if isinstance(value, Mapping):
        return {str(name): _without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def _unwritable(record: dict[str, Any], error: Exception) -> dict[str, Any]:
    message = f"A record of type {record['type']} could not be written: {error}"
    fields = {"name": "journal.unwritable", "message": message, "level": "warning", "data": {}}
    return {"seq": record["seq"], "at": record["at"], "type": "event", **fields}
