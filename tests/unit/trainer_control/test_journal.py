"""The journal of a launch: what is in the file, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tunefleet.trainer_control.journal import writer as module
from tunefleet.trainer_control.journal.writer import JournalWriter, plain_values


def records(writer: JournalWriter) -> list[dict[str, Any]]:
    return [json.loads(line) for line in writer.path.read_text().splitlines()]


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[JournalWriter]:
    writer = JournalWriter(folder, "launch-1", **options)
    try:
        yield writer
    finally:
        writer.close()


def test_the_first_record_names_the_launch_and_where_it_resumes(tmp_path: Path) -> None:
    with opened(tmp_path, attempt=3, from_step=40, checkpoint="abc") as writer:
        writer.sync()
        (first,) = records(writer)
    assert first["type"] == "launch"
    assert (first["launch"], first["attempt"], first["from_step"], first["checkpoint"]) == ("launch-1", 3, 40, "abc")
    assert first["pid"] == os.getpid()


def test_sequence_numbers_have_no_gap_whatever_is_recorded(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        for step in range(50):
            writer.metric(step, {"loss": 1.0})
            if step % 7 == 0:
                writer.event("note", "something")
            if step % 10 == 0:
                writer.sync()
        writer.checkpoint(10, "checkpoint-10", "d", 7)
        writer.prediction(10, 0, "p", "o")
    assert [record["seq"] for record in records(writer)] == list(range(writer.seq))


def test_a_torn_tail_is_cut_and_the_numbers_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.metric(1, {"loss": 2.0})
    with writer.path.open("ab") as file:
        file.write(b'{"seq":2,"at":1.0,"type":"met')
    with opened(tmp_path) as writer:
        writer.metric(2, {"loss": 1.0})
    assert [(record["seq"], record["type"]) for record in records(writer)] == [
        (0, "launch"),
        (1, "metric"),
        (2, "metric"),
    ]


def test_what_is_no_number_for_json_is_a_string(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.metric(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5})
        writer.event("odd", "x", data={"value": math.nan, "list": [math.inf], "path": Path("/x")})
    metric, event = records(writer)[1:]
    assert metric["values"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.5}
    assert event["data"] == {"value": "NaN", "list": ["Infinity"], "path": "/x"}


def test_values_are_taken_as_they_are_at_the_call(tmp_path: Path) -> None:
    values = {"loss": 1.0}
    with opened(tmp_path) as writer:
        writer.metric(1, values)
        values["loss"] = 9.0
    assert records(writer)[1]["values"] == {"loss": 1.0}


class OnDevice:
    """A tensor on a GPU: asking for its value would wait for the device."""

    class device:
        type = "cuda"

    def __float__(self) -> float:
        raise AssertionError("the device was asked")


def test_a_value_on_a_device_is_never_asked_for() -> None:
    assert plain_values({"loss": 1.0, "grad": OnDevice(), "flag": True, "note": object()}) == {"loss": 1.0, "flag": 1.0}


def test_progress_is_written_at_most_once_a_second_and_its_last_one_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        for step in range(200):
            writer.progress("training", step=step)
            time.sleep(0.002)
        writer.progress("finishing", step=200)
    progress = [record for record in records(writer) if record["type"] == "progress"]
    assert 1 <= len(progress) <= 3
    assert (progress[-1]["phase"], progress[-1]["step"]) == ("finishing", 200)


def test_a_full_disk_loses_nothing_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, full = os.write, [True]

    def write(fd: int, data: Any) -> int:
        if full[0]:
            # What a full disk does: a part, then the error.
            if len(data) > 5:
                return real_write(fd, bytes(data)[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data)

    with opened(tmp_path) as writer:
        writer.sync()
        monkeypatch.setattr(module.os, "write", write)
        writer.metric(1, {"loss": 1.0})
        with pytest.raises(OSError, match="No space"):
            writer.sync()
        assert len(records(writer)) == 1
        full[0] = False
        writer.metric(2, {"loss": 2.0})
        writer.sync()
        assert [(record["seq"], record.get("step")) for record in records(writer)] == [(0, None), (1, 1), (2, 2)]


def test_records_reach_the_file_without_a_sync(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.metric(1, {"loss": 1.0})
        deadline = time.monotonic() + 5
        while len(records(writer)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(records(writer)) == 2


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.close()
        writer.close()
        writer.sync()
    assert len(records(writer)) == 1


def test_what_takes_long_to_ask_is_asked_by_the_writer_when_it_writes(tmp_path: Path) -> None:
    asked: list[str] = []

    def probe() -> dict[str, float | None]:
        asked.append(threading.current_thread().name)
        return {"rss_bytes": 7}

    with opened(tmp_path) as writer:
        writer.progress("loading", probe=probe)
        writer.progress("training", probe=probe, step=1)
        assert asked == []
        deadline = time.monotonic() + 5
        while len(records(writer)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    (progress,) = records(writer)[1:]
    assert asked == ["tunefleet-journal"]
    assert (progress["phase"], progress["step"], progress["rss_bytes"]) == ("training", 1, 7)


def test_a_probe_that_fails_costs_its_own_fields_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def probe() -> dict[str, float | None]:
        raise RuntimeError("the device is gone")

    with opened(tmp_path) as writer:
        for step in (1, 2):
            writer.progress("training", probe=probe, step=step)
            with writer.lent():
                pass
    assert [(record["type"], record["step"]) for record in records(writer)[1:]] == [("progress", 1), ("progress", 2)]
    assert caplog.text.count("the device is gone") == 1


def test_progress_goes_on_once_another_process_has_written(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.progress("training", step=1)
        with writer.lent():
            pass
        writer.progress("training", step=2)
        deadline = time.monotonic() + 5
        while len(records(writer)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [record["step"] for record in records(writer)[1:]] == [1, 2]


@pytest.mark.parametrize(
    ("used", "every"),
    [(0, 1), (500, 1), (501, 2), (750, 2), (751, 4), (875, 4), (876, 8), (1000, 1 << 20), (5000, 1 << 20)],
)
def test_of_half_the_room_that_is_left_each_time_half_as_many_points_are_recorded(
    monkeypatch: pytest.MonkeyPatch, used: int, every: int
) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 1000)
    assert module.one_of(used) == every


def test_a_journal_near_its_limit_leaves_out_points_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 100_000)
    with opened(tmp_path) as writer:
        for step in range(1, 5001):
            writer.metric(step, {"loss": 1.0})
            if step % 500 == 0:
                writer.metric(step, {"eval_loss": 1.0})
                writer.checkpoint(step, f"checkpoint-{step}", "d", 7)
                writer.event("note", "something")
            if step % 5 == 0:
                writer.sync()
    found = records(writer)
    assert [record["seq"] for record in found] == list(range(len(found))), "no gap, which would be a loss"
    assert sum(len(line) for line in writer.path.read_bytes().splitlines(True) if b'"metric"' in line) < 100_000
    steps = [record["step"] for record in found if record["type"] == "metric" and "loss" in record["values"]]
    first = next(record for record in found if record.get("name") == "journal.thinned")
    (begin,) = [step for step in range(2, 5000) if f"from step {step:,} on" in first["message"]]
    assert steps[: begin - 1] == list(range(1, begin)), "up to then nothing is missing"
    assert begin < steps[-1]
    assert steps[-1] > 1500
    assert sum(record.get("name") == "journal.thinned" for record in found) == 1
    every = list(range(500, 5001, 500))
    assert [record["step"] for record in found if record["type"] == "checkpoint"] == every
    assert [record["step"] for record in found if "eval_loss" in record.get("values", {})] == every
    assert sum(record.get("name") == "note" for record in found) == len(every)


def test_of_curves_that_take_turns_each_keeps_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "one_of", lambda _: 4)
    with opened(tmp_path) as writer:
        for step in range(1, 41):
            writer.metric(step, {"loss": 1.0})
            writer.metric(step, {"reward": 1.0})
            writer.metric(step, {"loss": 1.0}, series="second")
    kept = Counter((record["series"], *record["values"]) for record in records(writer) if record["type"] == "metric")
    assert kept == {("train", "loss"): 10, ("train", "reward"): 10, ("second", "loss"): 10}


def test_the_journals_of_a_job_share_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 10_000)
    with opened(tmp_path) as writer:
        pass
    (writer.path.parent / "launch-0.jsonl").write_bytes(b"x" * 6000)
    with opened(tmp_path) as writer:
        for step in range(8):
            writer.metric(step, {"loss": 1.0})
    assert [record["step"] for record in records(writer) if record["type"] == "metric"] == [1, 3, 5, 7]
