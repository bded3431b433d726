"""A log over its limit loses its middle, says how much, and whoever follows it goes on at the right byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime import job_log
from tunefleet.runtime.exit_classification import log_tail
from tunefleet.schemas.job_folder import JobFolder

LIMIT = 4000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "BEGINNING_BYTES", 1000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


class Writer:
    """Writes numbered lines of ten bytes as a job does: to a file that was opened once, and is appended to."""

    def __init__(self, log: Path) -> None:
        self._fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.count = 0

    def lines(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            os.write(self._fd, b"%09d\n" % number)
        self.count += count


def follow(log: Path, position: int) -> tuple[int, bytes]:
    """Read all that there is from a position on, in small pieces; return what comes next and what was read."""
    found = b""
    while True:
        at, data = job_log.read(log, position, 7)
        if not data:
            return position, found
        position, found = at + len(data), found + data


@pytest.mark.parametrize(("lines", "cut"), [(0, False), (300, False), (301, True), (5000, True)])
def test_a_log_is_cut_behind_its_beginning_once_it_is_over_its_limit(log: Path, lines: int, cut: bool) -> None:
    Writer(log).lines(lines)
    before = log.read_bytes()
    assert job_log.shorten(log, LIMIT) is cut
    if not cut:
        assert log.read_bytes() == before
        assert job_log.dropped(log) == (0, 0)
        return
    left = log.read_bytes()
    assert left.startswith(before[:1000] + b"\n--- ")
    assert f"\n--- {lines * 10 - 1000:,} bytes ({lines - 100:,} lines) of this log are dropped here".encode() in left
    assert b"within 4,000 bytes (TUNEFLEET_JOB_LOG_BYTES)" in left
    assert log.with_name("train.log.1").read_bytes() == before[-1000:]
    assert job_log.end(log) == lines * 10 + len(left) - 1000


def test_no_log_is_no_error(log: Path) -> None:
    assert job_log.shorten(log, LIMIT) is False
    assert (job_log.end(log), job_log.dropped(log), job_log.read(log, 5, 10)) == (0, (0, 0), (5, b""))


def test_however_much_is_written_the_files_stay_within_the_limit(log: Path) -> None:
    writer = Writer(log)
    for _ in range(200):
        writer.lines(10)
        job_log.shorten(log, LIMIT)
        assert sum(file.stat().st_size for file in log.parent.iterdir()) <= LIMIT
    text = log.read_text()
    assert text.count("are dropped here") == 1
    assert text.startswith("000000000\n")
    assert text.endswith(f"{writer.count - 1:09d}\n")


def test_one_who_keeps_up_reads_everything_and_the_notes(log: Path) -> None:
    writer, position, found = Writer(log), 0, b""
    for _ in range(100):
        writer.lines(17)
        position, data = follow(log, position)
        found += data
        job_log.shorten(log, LIMIT)
    position, data = follow(log, position)
    numbers = [int(line) for line in (found + data).split() if line.isdigit() and len(line) == 9]
    assert numbers == list(range(writer.count))
    assert found.count(b"are dropped here") > 3
    assert position == job_log.end(log)


@pytest.mark.parametrize("read_before", [0, 500, 1000, 1500, 3010])
def test_one_who_lags_behind_misses_what_is_dropped_and_reads_the_note(log: Path, read_before: int) -> None:
    writer = Writer(log)
    writer.lines(301)
    whole = log.read_bytes()
    job_log.shorten(log, LIMIT)
    writer.lines(5)
    _, found = follow(log, read_before)
    note = log.read_bytes()[1000:].splitlines(keepends=True)
    assert found == whole[read_before:1000] + b"".join(note)
    assert found.endswith(b"%09d\n" % 305)


def test_a_second_cut_counts_on(log: Path) -> None:
    writer = Writer(log)
    writer.lines(400)
    job_log.shorten(log, LIMIT)
    position = job_log.end(log)
    writer.lines(400)
    job_log.shorten(log, LIMIT)
    writer.lines(3)
    gone, lines = job_log.dropped(log)
    assert gone > 4000 + 4000 - 1000 - 1
    assert lines == 800 - 100 + 2, "and the ends of the first note"
    assert job_log.read(log, position, 5)[0] == 1000 + gone, "what it was to read next is gone"


def test_what_is_written_while_a_log_is_cut_is_counted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, copied = Writer(log), job_log._copy_newest
    writer.lines(301)

    def slow(*given: Any) -> bool:
        done = copied(*given)
        writer.lines(500)  # of a process that goes on meanwhile
        return done

    monkeypatch.setattr(job_log, "_copy_newest", slow)
    position = follow(log, 0)[0]
    job_log.shorten(log, LIMIT)
    gone, lines = job_log.dropped(log)
    assert (gone, lines) == (801 * 10 - 1000, 801 - 100)
    assert log.with_name("train.log.1").stat().st_size == LIMIT // 4, "no more than a quarter, however fast it grows"
    writer.lines(2)
    assert job_log.read(log, position, 1000)[1].endswith(b"%09d\n" % 802)


def test_one_who_is_beyond_the_end_goes_on_at_the_end(log: Path) -> None:
    writer = Writer(log)
    writer.lines(400)
    job_log.shorten(log, LIMIT)
    end = job_log.end(log)
    assert job_log.read(log, end + 70, 100) == (end, b""), "so much was written in the moment of the cut"
    writer.lines(1)
    assert job_log.read(log, end, 100) == (end, b"%09d\n" % 400)


def test_a_cut_that_was_killed_is_finished_by_the_next(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "_CUTTING_S", 0.01)
    writer = Writer(log)
    writer.lines(400)
    cut = job_log._CUT
    monkeypatch.setattr(job_log, "_CUT", job_log._CUTTING)  # killed before the last write
    job_log.shorten(log, LIMIT)
    assert b" ...\n" in log.read_bytes()
    monkeypatch.setattr(job_log, "_CUT", cut)
    writer.lines(400)
    job_log.shorten(log, LIMIT)
    assert log.read_bytes().count(b" ---\n") == 1
    assert job_log.dropped(log)[0] > 8000 - 1001


@pytest.mark.parametrize(
    "forged", ["--- , bytes (, lines) of this log are dropped here: x ---", "--- 5 bytes of this log are dropped here"]
)
def test_a_line_of_the_job_is_not_taken_for_a_note(log: Path, forged: str) -> None:
    log.write_bytes(b"x" * 1000 + b"\n" + forged.encode() + b"\n")
    assert job_log.dropped(log) == (0, 0)
    assert job_log.end(log) == log.stat().st_size


def test_a_full_disk_does_not_keep_a_log_from_being_cut(log: Path) -> None:
    Writer(log).lines(1000)
    log.with_name("train.log.1").symlink_to("/dev/full")
    assert job_log.shorten(log, LIMIT)
    assert log.stat().st_size < 1300
    assert not log.with_name("train.log.1").is_symlink()
    assert "train.log.1" not in log.read_text()


def test_the_tail_of_a_launch_is_found_behind_a_cut(log: Path) -> None:
    writer = Writer(log)
    writer.lines(1000)
    job_log.shorten(log, LIMIT)
    began = job_log.end(log)
    writer.lines(2)
    assert log_tail(JobFolder(log.parent), began) == "000001000\n000001001\n"


def test_the_tail_goes_on_into_what_a_cut_has_put_aside(log: Path) -> None:
    writer = Writer(log)
    writer.lines(1000)
    job_log.shorten(log, LIMIT)
    writer.lines(2)
    note = log.read_bytes()[1000:-20]
    found = job_log.tail(log, 9950, 64 << 10)
    assert found == b"000000995\n000000996\n000000997\n000000998\n000000999\n" + note + b"000001000\n000001001\n"
    assert len(job_log.tail(log, 0, 300)) == 300
    log.with_name("train.log.1").unlink()
    assert job_log.tail(log, 9950, 64 << 10) == note + b"000001000\n000001001\n"
