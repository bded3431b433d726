"""What a shipper of the agent delivers to: the backend protocol, record by record and line by line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.agent.job import AgentJob
from tunefleet.agent.journal import JournalState, point_of
from tunefleet.agent.logtext import Stamper
from tunefleet.client.backend import JobClient
from tunefleet.errors import AuthError, TunefleetError, UnreachableError

logger = logging.getLogger(__name__)

_LINES: Final = 100


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
        self._state = JournalState()
        self._log_at: int | None = None
        self._line = 0
        self._rest = b""
        self._stamper = Stamper(job.record.started_at or job.record.order)
        self.refused: AuthError | None = None

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        """Report the points and predictions among records; returns the number of the next record."""
        for seq, line in enumerate(lines, from_seq):
            try:
                self._record(orjson.loads(line))
            except orjson.JSONDecodeError:
                logger.warning("job(%s): record %d of %s cannot be read.", self._job.job_id, seq, launch)
            except UnreachableError:
                if seq == from_seq:
                    raise
                return seq
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

    def _record(self, record: dict[str, Any]) -> None:
        if self._job.record.muted is not None:
            return
        if record.get("type") == "prediction":
            self._guard("predictions", lambda: self._client.predictions(self._job.job_id, [self._prediction(record)]))
            return
        self._state.points.clear()
        self._state.take(record)
        point = None
        if record.get("type") == "metric" and record.get("series", "train") == "train":
            point = point_of(record, self._state.progress, self._load())
        if point is not None:
            self._guard("metrics", lambda: self._client.metrics(self._job.job_id, point))

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
        self._guard("logs", lambda: self._client.logs(self._job.job_id, text, self._line))
        self._line += len(lines)

    def _guard(self, what: str, call: Any) -> None:
        try:
            call()
        except UnreachableError:
            raise
        except AuthError as error:
            self.refused = error
            raise UnreachableError(str(error)) from error
        except TunefleetError as error:
            skip(self._job, what, error)

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
