"""What a shipper of the agent delivers to: the backend protocol, record by record and line by line."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.agent.job import AgentJob
from tunefleet.agent.journal import JournalState, Point
from tunefleet.agent.logtext import Stamper
from tunefleet.client.backend import JobClient
from tunefleet.errors import AuthError, NotFoundError, TunefleetError, UnreachableError

logger = logging.getLogger(__name__)

_LINES: Final = 100
_POINTS: Final = 1000


_Numbered = tuple[int, Point]


class _Stuck(Exception):
    """What came before this record is reported; this one cannot be now."""

    def __init__(self, seq: int, error: UnreachableError) -> None:
        super().__init__(str(error))
        self.seq = seq
        self.error = error


class BackendSink:
    """A shipper's sink that speaks the backend protocol.

    Args:
        job: The job.
        client: Speaks to the backend.
        load: Utilisation of the job's GPU in percent.
    """

    def __init__(self, job: AgentJob, client: JobClient, load: Any) -> None:
        self._job = job
        self._client = client
        self._load = load
        self._state = JournalState(of_tokens=job.record.loss_is_of_tokens)
        self._log_at: int | None = None
        self._line = 0
        self._rest = b""
        self._stamper = Stamper(job.record.started_at or job.record.order)
        self.refused: AuthError | None = None
        self._batches = True

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Report the points and predictions among records; returns the number of the next record."""
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
        """Report whole lines; what is behind the last line break waits for the rest of its line."""
        self._stand_at(offset)
        lines = (self._rest + data).split(b"\n")
        rest = lines.pop()
        done = 0
        for start in range(0, len(lines), _LINES):
            batch = lines[start : start + _LINES]
            try:
                self._post(batch)
            except UnreachableError:
                if start == 0:
                    raise
                return self._moved(offset, sum(len(line) + 1 for line in lines[:done]) - len(self._rest), b"")
            done = start + len(batch)
        return self._moved(offset, len(data), rest)

    def flush_tail(self) -> None:
        """Report a last line that has no line break; the job has ended."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._post([rest])

    def _parsed(self, line: str, launch: str, seq: int) -> dict[str, Any]:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            logger.warning("job(%s): record %d of %s cannot be read.", self._job.job_id, seq, launch)
            return {}
        return record if isinstance(record, dict) else {}

    def _point(self, record: dict[str, Any]) -> Point | None:
        self._state.points.clear()
        self._state.take(record)
        if record.get("type") != "metric" or record.get("series", "train") != "train":
            return None
        return self._state.point_of(record, self._load())

    def _report(self, points: list[_Numbered]) -> None:
        """Report points, at once where the backend takes them so: after an outage there are thousands."""
        if self._job.record.muted is not None or (len(points) > 1 and self._report_at_once(points)):
            return
        for seq, point in points:
            self._guard("metrics", partial(self._client.metrics, self._job.job_id, point), seq)

    def _report_at_once(self, points: list[_Numbered]) -> bool:
        try:
            self._client.metrics_batch(self._job.job_id, [point for _, point in points])
        except (UnreachableError, AuthError) as error:
            raise _Stuck(points[0][0], self._kept(error)) from error
        except TunefleetError as error:
            # It knows no batches, or one of these points is not to its liking: each is reported alone.
            self._batches = not isinstance(error, NotFoundError)
            logger.debug("job(%s): %d points are reported one by one: %s", self._job.job_id, len(points), error)
            return False
        return True

    def _predict(self, seq: int, record: dict[str, Any]) -> None:
        if self._job.record.muted is None:
            one = [self._prediction(record)]
            self._guard("predictions", lambda: self._client.predictions(self._job.job_id, one), seq)

    def _prediction(self, record: dict[str, Any]) -> dict[str, Any]:
        known = {
            "job_id": self._job.job_id,
            "user_id": self._job.record.user_id,
            "epoch": record.get("epoch") or 0,
            "step": record.get("step"),
            "sample_index": record.get("index"),
            "prompt": record.get("prompt"),
            "prediction": record.get("output"),
            "ground_truth": record.get("reference"),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _post(self, lines: list[bytes]) -> None:
        text = [self._stamper.line(line) for line in lines]
        try:
            self._guard("logs", lambda: self._client.logs(self._job.job_id, text, self._line), 0)
        except _Stuck as stuck:
            raise stuck.error from stuck
        self._line += len(lines)

    def _guard(self, what: str, call: Any, seq: int) -> None:
        try:
            call()
        except (UnreachableError, AuthError) as error:
            raise _Stuck(seq, self._kept(error)) from error
        except TunefleetError as error:
            skip(self._job, what, error)

    def _kept(self, error: UnreachableError | AuthError) -> UnreachableError:
        if isinstance(error, UnreachableError):
            return error
        self.refused = error
        return UnreachableError(str(error))

    def _stand_at(self, offset: int) -> None:
        """Find out which line an offset is in, and what of that line was taken before; after a restart only."""
        if self._log_at == offset:
            return
        base = self._base()
        taken = _read_range(self._job.folder.log, base, offset)
        self._line = taken.count(b"\n")
        self._rest = taken[taken.rfind(b"\n") + 1 :]
        self._log_at = offset

    def _moved(self, offset: int, count: int, rest: bytes) -> int:
        self._rest = rest
        self._log_at = offset + count
        return self._log_at

    def _base(self) -> int:
        job = orjson.loads(self._job.folder.job_json.read_bytes())
        return int(job.get("log_base") or 0)


def skip(job: AgentJob, what: str, error: TunefleetError) -> None:
    """Note that the backend will never take something, and go on."""
    refused = job.record.refused
    job.note(refused={**refused, what: refused.get(what, 0) + 1})
    if what not in refused:
        job.add_warning(f"The backend does not take {what}: {error}")


def _read_range(file: Path, start: int, length: int) -> bytes:
    if not length:
        return b""
    with file.open("rb") as log:
        log.seek(start)
        return log.read(length)
