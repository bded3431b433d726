"""Detects lost journal records of a job: damaged, truncated or removed lines, and thinned points.

Each line has its sequence number and a CRC-32, so that losses are detected and reported in the job's result.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.job_folder import JobFolder

_CRC: Final = re.compile(rb',"crc":(\d+)\}$')
_THINNED: Final = b'"journal.thinned"'
# Gaps that are reported one by one.
_MAX_GAPS: Final = 20


@dataclass(slots=True)
class Gap:
    """Consecutive missing records.

    Args:
        first: Number of the first missing record.
        count: Number of missing records; None if unknown.
        after_step: Step of the last record before the gap; None if there is none.
        before_step: Step of the first record after the gap that has one; None if there is none.
    """

    launch: str
    first: int
    count: int | None
    after_step: int | None
    before_step: int | None = None

    @property
    def sentence(self) -> str:
        """Message for the user."""
        many = "Records" if self.count is None else f"{self.count:,} record{'s' if self.count > 1 else ''}"
        begin = "from the beginning" if self.after_step is None else f"after step {self.after_step:,}"
        end = "to the end" if self.before_step is None else f"before step {self.before_step:,}"
        return (
            f"{many} from number {self.first:,} of the journal of {self.launch} were lost on the worker's disk: points "
            f"{begin} and {end} may be missing."
        )


def losses(folder: JobFolder) -> tuple[str, ...]:
    """Read the journals of an ended job; return a message for each loss, and for thinned points."""
    files = sorted(folder.journal_dir.glob("*.jsonl"))
    status = read_status(folder)
    found = [sentence for file in files for sentence in left_out(file)]
    found += [gap.sentence for file in files for gap in gaps(file, folder)]
    if status is not None and status.records and status.launch not in {None, *(file.stem for file in files)}:
        found.append(Gap(str(status.launch), 0, status.records, None).sentence)
    if len(found) > _MAX_GAPS:
        return (*found[:_MAX_GAPS], f"{len(found) - _MAX_GAPS:,} more gaps of its journals are not listed.")
    return tuple(found)


def gaps(file: Path, folder: JobFolder) -> Iterator[Gap]:
    """Yield the gaps of a launch's journal."""
    expected, step, gap = 0, None, None
    with file.open("rb") as lines:
        for line in lines:
            record = read(line)
            number = record.get("seq") if record is not None else None
            if record is None or not isinstance(number, int):
                gap, expected = _extended(gap, file.stem, expected, 1, step), expected + 1
                continue
            if number != expected:
                gap = _extended(gap, file.stem, min(number, expected), number - expected, step)
            expected = number + 1
            now = record.get("step")
            if isinstance(now, int):
                step = now
                if gap is not None:
                    gap.before_step = now
            if gap is not None and gap.before_step is not None:
                yield gap
                gap = None
    # A truncated end leaves no gap in the numbers: the trainer's status has the total.
    status = read_status(folder)
    total = status.records if status is not None and status.launch == file.stem else None
    if total is not None and expected < total:
        gap = _extended(gap, file.stem, expected, total - expected, step)
    if gap is not None:
        yield gap


def left_out(file: Path) -> Iterator[str]:
    """Yield the messages of a launch's journal about points that were thinned to save space."""
    with file.open("rb") as lines:
        for line in lines:
            record = read(line) if _THINNED in line else None
            if record is not None and record.get("name") == "journal.thinned":
                yield f"{file.stem}: {record.get('message')}"


def read(line: bytes) -> dict[str, Any] | None:
    """Return a record; None if it is damaged. A line without a checksum, as of older versions, is accepted."""
    text = line.rstrip(b"\n")
    checksum = _CRC.search(text)
    if checksum is not None and zlib.crc32(text[: checksum.start()] + b"}") != int(checksum[1]):
        return None
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _extended(gap: Gap | None, launch: str, first: int, count: int, step: int | None) -> Gap:
    """Return a gap extended by more records; if numbers go backwards, the count is unknown."""
    more = count if count > 0 else None
    if gap is None:
        return Gap(launch, first, more, step)
    gap.count = None if gap.count is None or more is None else gap.count + more
    return gap
