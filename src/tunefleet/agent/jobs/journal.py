"""State of a job, read incrementally from its journal: metric points, checkpoints, progress, errors."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ConfigDict

from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.training_protocol.training import TrainingMetrics

GIB: Final = 1 << 30
_NAMES: Final = {
    "loss": "train_loss",
    "eval_loss": "eval_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "train_samples_per_second": "samples_per_second",
}
# Text fields of a progress record; all others are numbers.
_TEXT_FIELDS: Final = frozenset({"type", "phase"})
# Errors of lines that Tunefleet's trainers do not write: not JSON, or a record with missing fields.
_UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, AttributeError)
# Metrics of preference training; the protocol does not define names for them, so the journal's names are used.
_OF_PAIRS: Final = tuple(
    f"{prefix}rewards/{name}" for prefix in ("", "eval_") for name in ("chosen", "rejected", "accuracies", "margins")
)


class Point(TrainingMetrics):
    """A metric point, including the rewards of preference training."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


@dataclass(slots=True)
class JournalState:
    """State from the journal so far."""

    points: list[Point] = field(default_factory=list)
    checkpoints: dict[int, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    of_tokens: bool = True
    samples_per_second: float | None = None

    def last(self, name: str) -> float | None:
        """Return the newest value of a field of the points."""
        return next((value for p in reversed(self.points) if (value := getattr(p, name)) is not None), None)

    def near(self, name: str, step: int) -> float | None:
        """Return the newest value of a field at or before a step."""
        found = (getattr(p, name) for p in reversed(self.points) if p.step <= step)
        return next((value for value in found if value is not None), None)

    def take(self, record: dict[str, Any]) -> Point | None:
        """Apply a record; return the point if it is one."""
        match record.get("type"):
            case "launch":
                self._rewind(int(record.get("from_step") or 0))
            case "metric" if record.get("series", "train") == "train":
                point = self.point_of(record)
                if point is not None:
                    self.points.append(point)
                return point
            case "progress":
                self.progress = {k: v for k, v in record.items() if k in _TEXT_FIELDS or number(v) is not None}
            case "checkpoint":
                self.checkpoints[int(record["step"])] = record
            case "event" if record.get("level") in ("warning", "error"):
                self.errors.append(record)
        return None

    def point_of(self, record: dict[str, Any], load: float | None = None) -> Point | None:
        """Translate a metric record; None if it has no reported metric."""
        values = record.get("values") or {}
        known = {theirs: number(values.get(ours)) for ours, theirs in _NAMES.items()}
        if all(value is None for name, value in known.items() if name != "samples_per_second"):
            # The last log of a Trainer is a summary of the run: as a point it would replace the last loss.
            self.samples_per_second = known["samples_per_second"] or self.samples_per_second
            return None
        progress = self.progress
        reserved, allocated = progress.get("gpu_bytes"), progress.get("gpu_allocated_bytes")
        losses = (known["train_loss"], known["eval_loss"]) if self.of_tokens else (None, None)
        train, evaluated = map(_perplexity, losses)
        rewards = {name: number(values.get(name)) for name in _OF_PAIRS}
        return Point(
            step=int(record["step"]),
            epoch=float(record.get("epoch") or 0.0),
            timestamp=_instant(float(record["at"])),
            tokens_per_second=progress.get("tokens_per_s"),
            gpu_memory_reserved_gb=round(reserved / GIB, 2) if reserved else None,
            gpu_memory_allocated_gb=round(allocated / GIB, 2) if allocated else None,
            gpu_utilization_percent=load if reserved else None,
            train_perplexity=train,
            eval_perplexity=evaluated,
            perplexity=evaluated,
            total_steps=progress.get("max_steps") or None,
            **{name: value for name, value in {**known, **rewards}.items() if value is not None},
        )

    def _rewind(self, from_step: int) -> None:
        # A resume repeats the steps after its checkpoint.
        self.points = [point for point in self.points if point.step <= from_step]
        self.checkpoints = {step: found for step, found in self.checkpoints.items() if step <= from_step}


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _perplexity(loss: float | None) -> float | None:
    return math.exp(loss) if loss is not None and loss < 700 else None


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


class JournalReader:
    """Follows the journal files of one job folder. Safe to share between threads."""

    def __init__(self, folder: JobFolder, *, of_tokens: bool) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._state = JournalState(of_tokens=of_tokens)
        self._lock = threading.Lock()

    def look(self) -> JournalState:
        """Read new records, and return a copy of the state."""
        with self._lock:
            for file in self._files():
                self._follow(file)
            state = self._state
            return replace(
                state, points=list(state.points), checkpoints=dict(state.checkpoints), errors=list(state.errors)
            )

    def _files(self) -> list[Path]:
        files = list(self._folder.journal_dir.glob("*.jsonl"))
        # In the order of launches: the file of an ended launch is not written any more.
        return sorted(files, key=lambda file: file.stat().st_mtime)

    def _follow(self, file: Path) -> None:
        offset = self._offsets.get(file, 0)
        with file.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
        # The trainer may be in the middle of a line, which the next call reads.
        complete = data[: data.rfind(b"\n") + 1]
        self._offsets[file] = offset + len(complete)
        for line in complete.splitlines():
            try:
                record = orjson.loads(line)
                if isinstance(record, dict):
                    self._state.take(record)
            except _UNREADABLE:
                continue  # the shipper delivers the raw line anyway
