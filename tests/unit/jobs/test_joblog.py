"""A log over its limit loses its middle, says how much, and whoever follows it goes on at the right byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefleet.jobs import joblog
from tunefleet.jobs.classify import log_tail
from tunefleet.wire.jobfolder import JobFolder

LIMIT = 4000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "BEGINNING_BYTES", 1000)


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
        at, data = joblog.read(log, position, 7)
        if not data:
            return position, found
        position, found = at + len(data), found + data


@pytest.mark.parametrize(("lines", "cut"), [(0, False), (300, False), (301, True), (5000, True)])
def test_a_log_is_cut_behind_its_beginning_once_it_is_over_its_limit(log: Path, lines: int, cut: bool) -> None:
    Writer(log).lines(lines)
    before = log.read_bytes()
    assert joblog.shorten(log, LIMIT) is cut
    if not cut:
        assert log.read_bytes() == before
        assert joblog.dropped(log) == 0
        return
    left = log.read_bytes()
    assert left.startswith(before[:1000] + b"\n--- ")
    assert f"\n--- {lines * 10 - 1000:,} bytes of this log are dropped here".encode() in left
    assert b"within 4,000 bytes (TUNEFLEET_JOB_LOG_BYTES)" in left
    assert log.with_name("train.log.1").read_bytes() == before[-1000:]
    assert joblog.end(log) == lines * 10 + len(left) - 1000


def test_no_log_is_no_error(log: Path) -> None:
    assert joblog.shorten(log, LIMIT) is False
    assert (joblog.end(log), joblog.dropped(log), joblog.read(log, 5, 10)) == (0, 0, (5, b""))


def test_however_much_is_written_the_files_stay_within_the_limit(log: Path) -> None:
    writer = Writer(log)
    for _ in range(200):
        writer.lines(10)
        joblog.shorten(log, LIMIT)
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
        joblog.shorten(log, LIMIT)
    position, data = follow(log, position)
    numbers = [int(line) for line in (found + data).split() if line.isdigit() and len(line) == 9]
    assert numbers == list(range(writer.count))
    assert found.count(b"are dropped here") > 3
    assert position == joblog.end(log)


@pytest.mark.parametrize("read_before", [0, 500, 1000, 1500, 3010])
def test_one_who_lags_behind_misses_what_is_dropped_and_reads_the_note(log: Path, read_before: int) -> None:
    writer = Writer(log)
    writer.lines(301)
    whole = log.read_bytes()
    joblog.shorten(log, LIMIT)
    writer.lines(5)
    _, found = follow(log, read_before)
    note = log.read_bytes()[1000:].splitlines(keepends=True)
    assert found == whole[read_before:1000] + b"".join(note)
    assert found.endswith(b"%09d\n" % 305)


def test_a_second_cut_counts_on(log: Path) -> None:
    writer = Writer(log)
    writer.lines(400)
    joblog.shorten(log, LIMIT)
    position = joblog.end(log)
    writer.lines(400)
    joblog.shorten(log, LIMIT)
    writer.lines(3)
    assert joblog.dropped(log) > 4000 + 4000 - 1000 - 1
    assert joblog.read(log, position, 5)[0] == 1000 + joblog.dropped(log), "what it was to read next is gone"


def test_a_full_disk_does_not_keep_a_log_from_being_cut(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    Writer(log).lines(1000)
    monkeypatch.setattr(joblog.shutil, "copyfileobj", full)
    assert joblog.shorten(log, LIMIT)
    assert log.stat().st_size < 1300
    assert not log.with_name("train.log.1").exists()
    assert "train.log.1" not in log.read_text()


def test_the_tail_of_a_launch_is_found_behind_a_cut(log: Path) -> None:
    writer = Writer(log)
    writer.lines(1000)
    joblog.shorten(log, LIMIT)
    began = joblog.end(log)
    writer.lines(2)
    assert log_tail(JobFolder(log.parent), began) == "000001000\n000001001\n"


def test_the_tail_goes_on_into_what_a_cut_has_put_aside(log: Path) -> None:
    writer = Writer(log)
    writer.lines(1000)
    joblog.shorten(log, LIMIT)
    writer.lines(2)
    note = log.read_bytes()[1000:-20]
    found = joblog.tail(log, 9950, 64 << 10)
    assert found == b"000000995\n000000996\n000000997\n000000998\n000000999\n" + note + b"000001000\n000001001\n"
    assert len(joblog.tail(log, 0, 300)) == 300
    log.with_name("train.log.1").unlink()
    assert joblog.tail(log, 9950, 64 << 10) == note + b"000001000\n000001001\n"
