"""Delivery: nothing is lost and nothing is doubled, whoever forgets, lags behind or fails."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tunefleet.errors import OffsetConflict, UnreachableError
from tunefleet.runtime import job_log
from tunefleet.runtime import log_shipper as module
from tunefleet.runtime.log_shipper import JournalShipper
from tunefleet.schemas.job_folder import JobFolder, Shipped


class Receiver:
    """Takes streams as the server does: what it has is dropped, a gap is refused."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.text = b""
        self.calls = 0
        self.away = 0

    def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
        self._called()
        have = self.records.setdefault(launch, [])
        if from_seq > len(have):
            raise OffsetConflict("a gap", cursor=len(have))
        have.extend(lines[len(have) - from_seq :])
        return len(have)

    def log(self, offset: int, data: bytes) -> int:
        self._called()
        if offset > len(self.text):
            raise OffsetConflict("a gap", cursor=len(self.text))
        self.text += data[len(self.text) - offset :]
        return len(self.text)

    def _called(self) -> None:
        self.calls += 1
        if self.away:
            self.away -= 1
            raise UnreachableError("The server is away.")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path)
    folder.journal_dir.mkdir()
    return folder


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01, 0.05))


def write(folder: JobFolder, launch: str, count: int, *, torn: str = "") -> list[str]:
    file = folder.journal_dir / f"{launch}.jsonl"
    start = len(file.read_text().splitlines()) if file.exists() else 0
    lines = [json.dumps({"seq": seq, "launch": launch}) for seq in range(start, start + count)]
    with file.open("a") as stream:
        stream.write("".join(line + "\n" for line in lines) + torn)
    return file.read_text().split("\n")[:-1]


def shipped(folder: JobFolder) -> Shipped:
    return Shipped.model_validate_json(folder.shipped_json.read_bytes())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_everything_arrives_in_order_and_is_noted(folder: JobFolder) -> None:
    lines, receiver = write(folder, "a", 5000), Receiver()
    folder.log.write_bytes(b"hello")
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    assert (receiver.records, receiver.text) == ({"a": lines}, b"hello")
    assert dict(shipper.cursors) == {"a": 5000}
    assert shipped(folder).offsets == {"a": (folder.journal_dir / "a.jsonl").stat().st_size}


def test_a_second_shipper_goes_on_where_the_first_stopped(folder: JobFolder) -> None:
    receiver = Receiver()
    write(folder, "a", 3)
    assert JournalShipper(folder, receiver).flush(5)
    lines = write(folder, "a", 2)
    receiver.calls = 0
    assert JournalShipper(folder, receiver).flush(5)
    assert (receiver.records["a"], receiver.calls) == (lines, 1)


def test_a_torn_line_waits_for_its_end(folder: JobFolder) -> None:
    receiver = Receiver()
    lines = write(folder, "a", 2, torn='{"seq": 2, "lau')
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    assert receiver.records["a"] == lines
    with (folder.journal_dir / "a.jsonl").open("a") as file:
        file.write('nch": "a"}\n')
    assert shipper.flush(5)
    assert receiver.records["a"][2:] == ['{"seq": 2, "launch": "a"}']


def test_only_a_line_feed_ends_a_record(folder: JobFolder) -> None:
    receiver = Receiver()
    (folder.journal_dir / "a.jsonl").write_bytes(b'{"x": "\r"}\n\n\xff\xfe\n{"y": 1}\n')
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    assert len(receiver.records["a"]) == shipper.cursors["a"] == 4


def test_a_receiver_that_lost_records_gets_them_again(folder: JobFolder) -> None:
    lines, receiver = write(folder, "a", 10), Receiver()
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    receiver.records["a"] = lines[:4]
    receiver.text = b""
    lines = write(folder, "a", 1)
    folder.log.write_bytes(b"text")
    assert shipper.flush(5)
    assert (receiver.records["a"], receiver.text) == (lines, b"text")


def test_a_lost_log_is_sent_again(folder: JobFolder) -> None:
    receiver = Receiver()
    folder.log.write_bytes(b"0123456789")
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    receiver.text = b"012"
    with folder.log.open("ab") as log:
        log.write(b"abc")
    assert shipper.flush(5)
    assert receiver.text == b"0123456789abc"


@pytest.mark.parametrize("note", [None, "", "{", '{"cursors": 3}', '{"cursors": {"a": 4}}'])
def test_a_lost_note_doubles_nothing(folder: JobFolder, note: str | None) -> None:
    lines, receiver = write(folder, "a", 3000), Receiver()
    folder.job_json.write_text(json.dumps({"attempt": 2, "log_base": 4}))
    folder.log.write_bytes(b"old\nnew\n")
    assert JournalShipper(folder, receiver).flush(5)
    folder.shipped_json.unlink() if note is None else folder.shipped_json.write_text(note)
    lines = write(folder, "a", 7)
    with folder.log.open("ab") as log:
        log.write(b"newer\n")
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    assert (receiver.records["a"], receiver.text) == (lines, b"new\nnewer\n")
    assert dict(shipper.cursors) == {"a": 3007}


def test_two_launches_in_one_folder_are_two_streams(folder: JobFolder) -> None:
    receiver = Receiver()
    first, second = write(folder, "a", 3, torn='{"se'), write(folder, "b", 2)
    shipper = JournalShipper(folder, receiver)
    assert shipper.flush(5)
    assert receiver.records == {"a": first, "b": second}
    assert dict(shipper.cursors) == {"a": 3, "b": 2}


def test_an_attempts_log_begins_where_its_launch_found_the_file(folder: JobFolder) -> None:
    first = Receiver()
    folder.job_json.write_text(json.dumps({"attempt": 1, "log_base": 0}))
    folder.log.write_bytes(b"first attempt\n")
    assert JournalShipper(folder, first).flush(5)
    folder.job_json.write_text(json.dumps({"attempt": 2, "log_base": 14}))
    with folder.log.open("ab") as log:
        log.write(b"second attempt\n")
    second = Receiver()
    assert JournalShipper(folder, second).flush(5)
    assert (first.text, second.text) == (b"first attempt\n", b"second attempt\n")
    assert (shipped(folder).attempt, shipped(folder).log_offset) == (2, 15)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("delivered", "base"), [(True, 0), (False, 0), (True, 700), (False, 700)])
def test_a_log_that_is_cut_goes_on_behind_what_was_dropped(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, delivered: bool, base: int, restarted: bool
) -> None:
    monkeypatch.setattr(job_log, "BEGINNING_BYTES", 500)
    folder.job_json.write_text(json.dumps({"attempt": 1, "log_base": base}))
    receiver = Receiver()
    shipper = JournalShipper(folder, receiver)
    before = b"".join(b"%09d\n" % number for number in range(200))
    folder.log.write_bytes(before)
    if delivered:
        assert shipper.flush(5)
    assert job_log.shorten(folder.log, 2000)
    note = folder.log.read_bytes()[500:]
    for line in (b"newer\n", b"newest\n"):
        with folder.log.open("ab") as log:
            log.write(line)
        shipper = JournalShipper(folder, receiver) if restarted else shipper
        assert shipper.flush(5)
    kept = before[base:] if delivered else before[base:500]
    assert receiver.text == kept + note + b"newer\nnewest\n"
    assert shipped(folder).log_skipped == len(before) - base - len(kept)


def test_a_receiver_that_is_away_is_told_when_it_is_back(folder: JobFolder, caplog: pytest.LogCaptureFixture) -> None:
    lines, receiver = write(folder, "a", 3), Receiver()
    receiver.away = 6
    shipper = JournalShipper(folder, receiver, interval_s=0.01)
    shipper.start()
    wait_for(lambda: receiver.records.get("a") == lines)
    shipper.stop()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [str(record.message) for record in warnings] == [
        f"Could not deliver {folder.root.name}, retrying: The server is away."
    ]


def test_a_flush_gives_up_at_its_time(folder: JobFolder) -> None:
    write(folder, "a", 3)
    receiver = Receiver()
    receiver.away = 1 << 60
    assert not JournalShipper(folder, receiver).flush(0.2)


def test_what_arrived_before_a_failure_is_noted(folder: JobFolder) -> None:
    write(folder, "a", 3)
    folder.log.write_bytes(b"text")
    receiver = Receiver()
    receiver.log = lambda offset, data: (_ for _ in ()).throw(UnreachableError("away"))  # type: ignore[method-assign]
    assert not JournalShipper(folder, receiver).flush(0.05)
    assert shipped(folder).cursors == {"a": 3}


def test_a_receiver_that_takes_nothing_is_not_asked_without_pause(folder: JobFolder) -> None:
    class Stubborn(Receiver):
        def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
            self.calls += 1
            raise OffsetConflict("no", cursor=from_seq)

    write(folder, "a", 3)
    receiver = Stubborn()
    assert not JournalShipper(folder, receiver).flush(0.3)
    assert receiver.calls < 20


def test_nothing_new_costs_no_call_and_no_write(folder: JobFolder) -> None:
    write(folder, "a", 3)
    receiver = Receiver()
    shipper = JournalShipper(folder, receiver, interval_s=0.01)
    assert shipper.flush(5)
    receiver.calls, before = 0, folder.shipped_json.stat().st_mtime_ns
    shipper.start()
    time.sleep(0.1)
    shipper.stop()
    assert (receiver.calls, folder.shipped_json.stat().st_mtime_ns) == (0, before)


def test_a_big_log_goes_in_pieces_and_a_stop_does_not_wait_for_all(folder: JobFolder) -> None:
    text = b"0123456789abcde\n" * (1 << 18)  # 4 MiB
    folder.log.write_bytes(text)

    class Slow(Receiver):
        def log(self, offset: int, data: bytes) -> int:
            time.sleep(0.1)
            assert len(data) <= 1 << 20
            return super().log(offset, data)

    receiver = Slow()
    shipper = JournalShipper(folder, receiver, interval_s=0.01)
    shipper.start()
    wait_for(lambda: receiver.calls > 0)
    shipper.stop()
    assert len(receiver.text) < len(text)
    assert JournalShipper(folder, receiver).flush(5)
    assert receiver.text == text


def test_a_line_longer_than_a_piece_goes_whole(folder: JobFolder) -> None:
    line = json.dumps({"seq": 0, "output": "x" * (3 << 20)})
    (folder.journal_dir / "a.jsonl").write_text(line + "\n")
    receiver = Receiver()
    assert JournalShipper(folder, receiver).flush(5)
    assert receiver.records["a"] == [line]


def test_a_note_that_cannot_be_written_does_not_end_a_delivery(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    lines, receiver = write(folder, "a", 3), Receiver()
    assert JournalShipper(folder, receiver).flush(5)
    assert receiver.records["a"] == lines


def test_an_error_that_nobody_expected_is_logged_and_tried_again(
    folder: JobFolder, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Receiver):
        def journal(self, launch: str, from_seq: int, lines: list[str]) -> int:
            if not self.calls:
                self.calls += 1
                raise ZeroDivisionError
            return super().journal(launch, from_seq, lines)

    lines, receiver = write(folder, "a", 3), Odd()
    shipper = JournalShipper(folder, receiver, interval_s=0.01)
    shipper.start()
    wait_for(lambda: receiver.records.get("a") == lines)
    shipper.stop()
    assert any(record.exc_info for record in caplog.records)
