"""A journal that a disk has damaged says so: every loss leaves a sentence with the steps around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tunefleet.runtime.monitor.journal_audit import losses, read
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.journal import writer as writer_module
from tunefleet.trainer_control.journal.writer import JournalWriter

STEPS = 40


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job whose journal has its first record, one for each of 40 steps, and an event."""
    writer = JournalWriter(tmp_path, "l1")
    for step in range(1, STEPS + 1):
        writer.metric(step, {"loss": 1.0 / step}, window=(step, step))
    writer.event("training.ended", 'It is over, with a "quote", {braces} and ü.')
    writer.sync()
    status = {"state": "completed", "at": 1.0, "pid": 1, "step": STEPS, "launch": "l1", "records": writer.seq}
    writer.close()
    (tmp_path / "status.json").write_text(json.dumps(status))
    return JobFolder(tmp_path)


def lines(folder: JobFolder) -> list[bytes]:
    return (folder.journal_dir / "l1.jsonl").read_bytes().splitlines(keepends=True)


def flip(line: bytes) -> bytes:
    return line.replace(b'"loss":', b'"lost":')


def digit(line: bytes) -> bytes:
    return line.replace(b'"epoch":null', b'"epoch":1.25')


def torn(line: bytes) -> bytes:
    return line[:20] + b"\n"


def zeroed(line: bytes) -> bytes:
    return b"\0" * (len(line) - 1) + b"\n"


def test_a_whole_journal_has_lost_nothing(folder: JobFolder) -> None:
    assert losses(folder) == ()
    assert all(read(line) is not None for line in lines(folder))
    assert read(lines(folder)[5])["step"] == 5  # type: ignore[index]


@pytest.mark.parametrize("damage", [flip, digit, torn, zeroed])
def test_a_damaged_line_is_named(folder: JobFolder, damage: Callable[[bytes], bytes]) -> None:
    found = lines(folder)
    found[12] = damage(found[12])
    found[13] = damage(found[13])
    (folder.journal_dir / "l1.jsonl").write_bytes(b"".join(found))
    (said,) = losses(folder)
    assert said == (
        "2 records from number 12 of the journal of l1 were lost on the worker's disk: points after step 11 and before "
        "step 14 may be missing."
    )


def test_lines_that_were_taken_out_are_named(folder: JobFolder) -> None:
    found = lines(folder)
    (folder.journal_dir / "l1.jsonl").write_bytes(b"".join([*found[:10], *found[34:]]))
    (said,) = losses(folder)
    assert said.startswith("24 records from number 10 of the journal of l1 were lost")
    assert "after step 9 and before step 34" in said


def test_an_end_that_was_cut_off_is_named(folder: JobFolder) -> None:
    (folder.journal_dir / "l1.jsonl").write_bytes(b"".join(lines(folder)[:31]))
    (said,) = losses(folder)
    assert said.startswith("11 records from number 31 of the journal of l1 were lost")
    assert "after step 30 and to the end" in said
    (folder.journal_dir / "l1.jsonl").write_bytes(b"")
    (said,) = losses(folder)
    assert "points from the beginning and to the end" in said


def test_a_journal_that_was_cut_and_then_written_on_is_named(folder: JobFolder) -> None:
    file = folder.journal_dir / "l1.jsonl"
    file.write_bytes(b"".join(lines(folder)[:20]))
    writer = JournalWriter(folder.root, "l1")
    writer.metric(41, {"loss": 0.1})
    writer.close()
    (said,) = losses(folder)
    assert "from number 21" in said
    assert "after step 41" in said


def test_many_losses_are_counted(folder: JobFolder) -> None:
    found = [flip(line) if index % 2 else line for index, line in enumerate(lines(folder) * 2)]
    (folder.journal_dir / "l2.jsonl").write_bytes(b"".join(found))
    said = losses(folder)
    assert len(said) == 21
    assert said[-1].endswith("more gaps of its journals are not listed.")


def test_lines_of_an_earlier_version_have_no_sum(folder: JobFolder) -> None:
    plain = [json.dumps({"seq": n, "at": 1.0, "type": "event"}).encode() + b"\n" for n in range(3)]
    (folder.journal_dir / "l0.jsonl").write_bytes(b"".join(plain))
    assert losses(folder) == ()


def test_points_that_were_left_out_for_their_room_are_a_loss_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LIMIT_BYTES", 3000)
    writer = JournalWriter(tmp_path, "l1")
    for step in range(1, STEPS + 1):
        writer.metric(step, {"loss": 1.0})
        writer.sync()
    writer.close()
    (said,) = losses(JobFolder(tmp_path))
    assert said.startswith("l1: Points are missing from step ")


def test_a_journal_that_is_gone_is_named(folder: JobFolder) -> None:
    (folder.journal_dir / "l1.jsonl").unlink()
    (sentence,) = losses(folder)
    assert sentence.startswith(f"{STEPS + 2:,} records from number 0 of the journal of l1 were lost")
