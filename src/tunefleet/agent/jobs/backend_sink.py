"""A shipper's sink that reports to a backend, record by record and line by line."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.journal import JournalState, Point
from tunefleet.agent.jobs.logtext import Stamper
from tunefleet.client.backend import BackendBusy, BackendFault, JobClient
from tunefleet.errors import AuthError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime import job_log
from tunefleet.trainer_control.files import read_json, write_json

logger = logging.getLogger(__name__)

# Log lines and metric points per request.
_LINES: Final = 100
_POINTS: Final = 1000
# How often a backend may fail on a record (about 15 s) before the record is deferred.
_MAX_FAILURES: Final = 6
# Deferred records, in the job folder.
DEFERRED: Final = "aside.jsonl"


_Numbered = tuple[int, Point]


class _BatchRejected(Exception):
    """The backend rejects these lines as a batch; only one of them may be the cause."""


class _DeliveryBlocked(Exception):
    """All earlier records are reported; this one cannot be reported now."""

    def __init__(self, seq: int, error: UnreachableError) -> None:
        super().__init__(str(error))
        self.seq = seq
        self.error = error


class BackendSink:
    """A shipper's sink for the backend protocol."""

    def __init__(self, job: AgentJob, client: JobClient, load: Any) -> None:
        self._job = job
        self._client = client
        self._load = load
        self._state = JournalState(of_tokens=job.record.loss_is_of_tokens)
        self._log_at: int | None = None
        self._line = 0
        self._alone_until = 0
        self._partial_line = b""
        self._stamper = Stamper(job.record.started_at or job.record.order, job.log_times)
        self.refused: AuthError | None = None
        self._batches = True
        self._failures: dict[tuple[str, int], int] = {}
        self._failing: set[str] = set()

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Report the metric points and predictions among the records; returns the number of the next record."""
        points: list[_Numbered] = []
        try:
            for seq, line in enumerate(lines, from_seq):
                record = self._parsed(line, launch, seq)
                point = self._point(record)
                if point is not None:
                    points.append((seq, point))
                if len(points) >= (_POINTS if self._batches else 1) or record.get("type") == "prediction":
                    self._report(points)
                    points = []
                if record.get("type") == "prediction":
                    self._predict(seq, record)
            self._report(points)
        except _DeliveryBlocked as blocked:
            if blocked.seq == from_seq:
                raise blocked.error from blocked
            return blocked.seq
        return from_seq + len(lines)

    def log(self, offset: int, data: bytes) -> int:
        """Report complete lines; a partial last line is kept for the next call."""
        self._restore_position(offset)
        lines = (self._partial_line + data).split(b"\n")
        rest = lines.pop()
        begin = self._base() + offset - len(self._partial_line)
        done = at = 0
        while done < len(lines):
            batch = lines[done : done + (1 if self._line < self._alone_until else _LINES)]
            try:
                self._post(batch, begin + at)
            except _BatchRejected:
                self._alone_until = self._line + len(batch)
                continue
            except UnreachableError:
                if done == 0:
                    raise
                return self._advance(offset, at - len(self._partial_line), b"")
            done += len(batch)
            at += sum(len(line) + 1 for line in batch)
        return self._advance(offset, len(data), rest)

    def flush_tail(self) -> None:
        """Report a last line without a line break, once the job has ended."""
        if self._partial_line:
            self._post([self._partial_line], self._base() + (self._log_at or 0) - len(self._partial_line))
            self._partial_line = b""

    def _parsed(self, line: str, launch: str, seq: int) -> dict[str, Any]:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            logger.warning("job(%s): could not parse record %d of %s.", self._job.job_id, seq, launch)
            return {}
        return record if isinstance(record, dict) else {}

    def _point(self, record: dict[str, Any]) -> Point | None:
        self._state.points.clear()
        self._state.take(record)
        if record.get("type") != "metric" or record.get("series", "train") != "train":
            return None
        point = self._state.point_of(record, self._load())
        return point if point is None else point.model_copy(update={"epoch": self._epoch(point.epoch)})

    def _epoch(self, epoch: float) -> float:
        """Return the epoch for the backend: an integer, except for a Tunefleet server."""
        return epoch if self._job.record.delivers else int(epoch)

    def _report(self, points: list[_Numbered]) -> None:
        """Report points, as one batch if the backend supports it."""
        # After an outage there may be thousands of points.
        if self._job.record.muted is not None or (len(points) > 1 and self._report_batch(points)):
            return
        for seq, point in points:
            body = point.model_dump(mode="json", exclude_none=True)
            self._send("metrics", partial(self._client.metrics, self._job.job_id, point), seq, body)

    def _report_batch(self, points: list[_Numbered]) -> bool:
        try:
            self._client.metrics_batch(self._job.job_id, [point for _, point in points])
        except BackendFault as error:
            logger.debug("job(%s): reporting %d points one by one: %s", self._job.job_id, len(points), error)
            return False  # only one of them may be the cause
        except (UnreachableError, AuthError) as error:
            first = points[0][0]
            if self._should_defer("points at once", first, error):
                return False  # only one of them may be the cause
            raise _DeliveryBlocked(first, self._as_unreachable(error)) from error
        except TunefleetError as error:
            # 404: no batch endpoint. Otherwise one of the points is rejected, so that each is reported alone.
            self._batches = not isinstance(error, NotFoundError)
            logger.debug("job(%s): reporting %d points one by one: %s", self._job.job_id, len(points), error)
            return False
        self._failing.discard("points at once")
        return True

    def _predict(self, seq: int, record: dict[str, Any]) -> None:
        if self._job.record.muted is None:
            one = [self._prediction(record)]
            self._send("predictions", lambda: self._client.predictions(self._job.job_id, one), seq, one)

    def _prediction(self, record: dict[str, Any]) -> dict[str, Any]:
        known = {
            "job_id": self._job.job_id,
            "user_id": self._job.record.user_id,
            "epoch": self._epoch(record.get("epoch") or 0),
            "step": record.get("step"),
            "sample_index": record.get("index"),
            "prompt": record.get("prompt"),
            "prediction": record.get("output"),
            "ground_truth": record.get("reference"),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _post(self, lines: list[bytes], begin: int) -> None:
        text = []
        for line in lines:
            text.append(self._stamper.line(line, begin))
            begin += len(line) + 1
        try:
            body = {"logs": text, "offset": self._line}
            self._send("logs", lambda: self._client.logs(self._job.job_id, text, self._line), self._line, body)
        except _DeliveryBlocked as blocked:
            raise blocked.error from blocked
        self._line += len(lines)

    def _send(self, what: str, call: Any, seq: int, body: Any) -> None:
        try:
            call()
        except (UnreachableError, AuthError) as error:
            if not self._should_defer(what, seq, error):
                raise _DeliveryBlocked(0 if what == "logs" else seq, self._as_unreachable(error)) from error
            handle_rejected = self._defer
            cause: TunefleetError = error
        except TunefleetError as error:
            handle_rejected = self._skip
            cause = error
        else:
            self._failing.discard(what)
            return
        if what == "logs" and len(body["logs"]) > 1:
            raise _BatchRejected from cause
        handle_rejected(what, body, cause)

    def _should_defer(self, what: str, seq: int, error: TunefleetError) -> bool:
        """Whether the backend keeps failing on a record, so that the next ones must not wait for it."""
        if not isinstance(error, BackendFault | BackendBusy | AuthError):
            return False
        self._failures[what, seq] = self._failures.get((what, seq), 0) + 1
        # One try each for the lines of a failed batch, and for records after one that has failed.
        alone = (what == "logs" and seq < self._alone_until) or what in self._failing
        if not alone and self._failures[what, seq] < _MAX_FAILURES:
            return False
        if not self._caused_by_record(error):
            if isinstance(error, BackendBusy):
                self._job.add_warning(f"The backend is busy, retrying: {error}")
            return False
        self._failing.add(what)
        return True

    def _defer(self, what: str, body: Any, error: TunefleetError) -> None:
        with (self._job.folder.root / DEFERRED).open("ab") as file:
            file.write(orjson.dumps({"what": what, "body": body}) + b"\n")
        defer(self._job, what, error)

    def _skip(self, what: str, body: Any, error: TunefleetError) -> None:  # noqa: ARG002 as `_defer`
        skip(self._job, what, error)

    def send_deferred(self) -> None:
        """Send the deferred records again, once the job has ended; records that fail again are dropped."""
        file = self._job.folder.root / DEFERRED
        lines = file.read_bytes().splitlines() if file.exists() else []
        for index, line in enumerate(lines):
            one = orjson.loads(line)
            try:
                self._client.send(one["what"], self._job.job_id, one["body"])
            except (UnreachableError, AuthError) as error:
                if not self._caused_by_record(error):
                    self._write_deferred(file, lines[index:])
                    raise
                skip(self._job, one["what"], error)
            except TunefleetError as error:
                skip(self._job, one["what"], error)
        file.unlink(missing_ok=True)

    @staticmethod
    def _write_deferred(file: Path, lines: list[bytes]) -> None:
        file.write_bytes(b"".join(line + b"\n" for line in lines))

    def _as_unreachable(self, error: UnreachableError | AuthError) -> UnreachableError:
        if isinstance(error, UnreachableError):
            return error
        if not self._caused_by_record(error):
            self.refused = error
        return UnreachableError(str(error))

    def _caused_by_record(self, error: UnreachableError | AuthError) -> bool:
        """Whether an error is caused by the record itself: the backend is up, and accepts the token otherwise."""
        if isinstance(error, AuthError):
            return self._client.takes_token(self._job.job_id, self._line)
        if isinstance(error, BackendBusy):
            return self._client.is_there(self._job.job_id, self._line)
        return isinstance(error, BackendFault)

    def _restore_position(self, offset: int) -> None:
        """Restore the line number and the partial line of an offset; only after a restart."""
        if self._log_at == offset:
            return
        base = self._base()
        noted = read_json(self._position_file) or {}
        if (noted.get("base"), noted.get("offset")) == (base, offset):
            begin = base + offset - noted["rest"]
            at, rest = job_log.read(self._job.folder.log, begin, noted["rest"])
            self._line, self._partial_line = noted["line"], rest if at == begin else b""
        else:
            taken = _read_range(self._job.folder.log, base, offset)
            self._line, self._partial_line = taken.count(b"\n"), taken[taken.rfind(b"\n") + 1 :]
        self._log_at = offset

    def _advance(self, offset: int, count: int, rest: bytes) -> int:
        self._partial_line = rest
        self._log_at = offset + count
        note = {"base": self._base(), "offset": self._log_at, "line": self._line, "rest": len(rest)}
        try:
            write_json(self._position_file, note)
        except OSError as error:
            logger.warning("job(%s): could not store the log position: %s", self._job.job_id, error)
        return self._log_at

    def _base(self) -> int:
        folder = self._job.folder
        job, shipped = read_json(folder.job_json) or {}, read_json(folder.shipped_json) or {}
        return int(job.get("log_base") or 0) + int(shipped.get("log_skipped") or 0)

    @property
    def _position_file(self) -> Path:
        """File with the number of reported lines up to a byte offset."""
        # Stored, since lines cannot be counted again once the log has been truncated.
        return self._job.folder.root / "reported.json"


def skip(job: AgentJob, what: str, error: TunefleetError) -> None:
    """Record that the backend rejects a report permanently, and continue."""
    refused = job.record.refused
    job.note(refused={**refused, what: refused.get(what, 0) + 1})
    if what not in refused:
        job.add_warning(f"The backend rejects {what}: {error}")


def defer(job: AgentJob, what: str, error: TunefleetError) -> None:
    """Record that a report is deferred to the end of the job, since the backend fails on it."""
    key = f"{what} put aside"
    job.note(refused={**job.record.refused, key: job.record.refused.get(key, 0) + 1})
    job.add_warning(f"The backend fails on some {what}, which are sent again at the end: {error}")


def _read_range(file: Path, start: int, length: int) -> bytes:
    if not length:
        return b""
    with file.open("rb") as log:
        log.seek(start)
        return log.read(length)
