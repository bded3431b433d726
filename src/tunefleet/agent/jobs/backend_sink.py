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
_FAULTS: Final = 6
# Deferred records, in the job folder.
ASIDE: Final = "aside.jsonl"


_Numbered = tuple[int, Point]


class _OneByOne(Exception):
    """The backend rejects these lines as a batch; only one of them may be the cause."""


class _Stuck(Exception):
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
        self._rest = b""
        self._stamper = Stamper(job.record.started_at or job.record.order, job.log_times)
        self.refused: AuthError | None = None
        self._batches = True
        self._faults: dict[tuple[str, int], int] = {}
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
        except _Stuck as stuck:
            if stuck.seq == from_seq:
                raise stuck.error from stuck
            return stuck.seq
        return from_seq + len(lines)

    def log(self, offset: int, data: bytes) -> int:
        """Report complete lines; a partial last line is kept for the next call."""
        self._stand_at(offset)
        lines = (self._rest + data).split(b"\n")
        rest = lines.pop()
        begin = self._base() + offset - len(self._rest)
        done = at = 0
        while done < len(lines):
            batch = lines[done : done + (1 if self._line < self._alone_until else _LINES)]
            try:
                self._post(batch, begin + at)
            except _OneByOne:
                self._alone_until = self._line + len(batch)
                continue
            except UnreachableError:
                if done == 0:
                    raise
                return self._moved(offset, at - len(self._rest), b"")
            done += len(batch)
            at += sum(len(line) + 1 for line in batch)
        return self._moved(offset, len(data), rest)

    def flush_tail(self) -> None:
        """Report a last line without a line break, once the job has ended."""
        if self._rest:
            self._post([self._rest], self._base() + (self._log_at or 0) - len(self._rest))
            self._rest = b""

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
        if self._job.record.muted is not None or (len(points) > 1 and self._report_at_once(points)):
            return
        for seq, point in points:
            body = point.model_dump(mode="json", exclude_none=True)
            self._guard("metrics", partial(self._client.metrics, self._job.job_id, point), seq, body)

    def _report_at_once(self, points: list[_Numbered]) -> bool:
        try:
            self._client.metrics_batch(self._job.job_id, [point for _, point in points])
        except BackendFault as error:
            logger.debug("job(%s): reporting %d points one by one: %s", self._job.job_id, len(points), error)
            return False  # only one of them may be the cause
        except (UnreachableError, AuthError) as error:
            first = points[0][0]
            if self._is_given_up("points at once", first, error):
                return False  # only one of them may be the cause
            raise _Stuck(first, self._kept(error)) from error
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
            self._guard("predictions", lambda: self._client.predictions(self._job.job_id, one), seq, one)

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
            self._guard("logs", lambda: self._client.logs(self._job.job_id, text, self._line), self._line, body)
        except _Stuck as stuck:
            raise stuck.error from stuck
        self._line += len(lines)

    def _guard(self, what: str, call: Any, seq: int, body: Any) -> None:
        try:
            call()
        except (UnreachableError, AuthError) as error:
            if not self._is_given_up(what, seq, error):
                raise _Stuck(0 if what == "logs" else seq, self._kept(error)) from error
            settle = self._put_aside
            cause: TunefleetError = error
        except TunefleetError as error:
            settle = self._skip
            cause = error
        else:
            self._failing.discard(what)
            return
        if what == "logs" and len(body["logs"]) > 1:
            raise _OneByOne from cause
        settle(what, body, cause)

    def _is_given_up(self, what: str, seq: int, error: TunefleetError) -> bool:
        """Whether the backend keeps failing on a record, so that the next ones must not wait for it."""
        if not isinstance(error, BackendFault | BackendBusy | AuthError):
            return False
        self._faults[what, seq] = self._faults.get((what, seq), 0) + 1
        # One try each for the lines of a failed batch, and for records after one that has failed.
        alone = (what == "logs" and seq < self._alone_until) or what in self._failing
        if not alone and self._faults[what, seq] < _FAULTS:
            return False
        if not self._is_about_it(error):
            if isinstance(error, BackendBusy):
                self._job.add_warning(f"The backend is busy, retrying: {error}")
            return False
        self._failing.add(what)
        return True

    def _put_aside(self, what: str, body: Any, error: TunefleetError) -> None:
        with (self._job.folder.root / ASIDE).open("ab") as file:
            file.write(orjson.dumps({"what": what, "body": body}) + b"\n")
        put_aside(self._job, what, error)

    def _skip(self, what: str, body: Any, error: TunefleetError) -> None:  # noqa: ARG002 as `_put_aside`
        skip(self._job, what, error)

    def send_aside(self) -> None:
        """Send the deferred records again, once the job has ended; records that fail again are dropped."""
        file = self._job.folder.root / ASIDE
        lines = file.read_bytes().splitlines() if file.exists() else []
        for index, line in enumerate(lines):
            one = orjson.loads(line)
            try:
                self._client.send(one["what"], self._job.job_id, one["body"])
            except (UnreachableError, AuthError) as error:
                if not self._is_about_it(error):
                    self._rest_aside(file, lines[index:])
                    raise
                skip(self._job, one["what"], error)
            except TunefleetError as error:
                skip(self._job, one["what"], error)
        file.unlink(missing_ok=True)

    @staticmethod
    def _rest_aside(file: Path, lines: list[bytes]) -> None:
        file.write_bytes(b"".join(line + b"\n" for line in lines))

    def _kept(self, error: UnreachableError | AuthError) -> UnreachableError:
        if isinstance(error, UnreachableError):
            return error
        if not self._is_about_it(error):
            self.refused = error
        return UnreachableError(str(error))

    def _is_about_it(self, error: UnreachableError | AuthError) -> bool:
        """Whether an error is caused by the record itself: the backend is up, and accepts the token otherwise."""
        if isinstance(error, AuthError):
            return self._client.takes_token(self._job.job_id, self._line)
        if isinstance(error, BackendBusy):
            return self._client.is_there(self._job.job_id, self._line)
        return isinstance(error, BackendFault)

    def _stand_at(self, offset: int) -> None:
        """Restore the line number and the partial line of an offset; only after a restart."""
        if self._log_at == offset:
            return
        base = self._base()
        noted = read_json(self._noted) or {}
        if (noted.get("base"), noted.get("offset")) == (base, offset):
            begin = base + offset - noted["rest"]
            at, rest = job_log.read(self._job.folder.log, begin, noted["rest"])
            self._line, self._rest = noted["line"], rest if at == begin else b""
        else:
            taken = _read_range(self._job.folder.log, base, offset)
            self._line, self._rest = taken.count(b"\n"), taken[taken.rfind(b"\n") + 1 :]
        self._log_at = offset

    def _moved(self, offset: int, count: int, rest: bytes) -> int:
        self._rest = rest
        self._log_at = offset + count
        note = {"base": self._base(), "offset": self._log_at, "line": self._line, "rest": len(rest)}
        try:
            write_json(self._noted, note)
        except OSError as error:
            logger.warning("job(%s): could not store the log position: %s", self._job.job_id, error)
        return self._log_at

    def _base(self) -> int:
        folder = self._job.folder
        job, shipped = read_json(folder.job_json) or {}, read_json(folder.shipped_json) or {}
        return int(job.get("log_base") or 0) + int(shipped.get("log_skipped") or 0)

    @property
    def _noted(self) -> Path:
        """File with the number of reported lines up to a byte offset."""
        # Stored, since lines cannot be counted again once the log has been truncated.
        return self._job.folder.root / "reported.json"


def skip(job: AgentJob, what: str, error: TunefleetError) -> None:
    """Record that the backend rejects a report permanently, and continue."""
    refused = job.record.refused
    job.note(refused={**refused, what: refused.get(what, 0) + 1})
    if what not in refused:
        job.add_warning(f"The backend rejects {what}: {error}")


def put_aside(job: AgentJob, what: str, error: TunefleetError) -> None:
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
