"""A standstill is noticed in real processes, told from work without a word, and its stacks are in the log."""

from __future__ import annotations

import os
import signal
import time

from tests.integration.runtime.conftest import Launch, process_of, training, until
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, exit_classification
from tunefleet.runtime.monitor.stall_detector import Stall, StallDetector

AFTER_S = 0.8


def _watch(handle: JobHandle, after_s: float = AFTER_S) -> StallDetector:
    return StallDetector(handle.folder, handle.job, after_s)


def _stall_of(dog: StallDetector, within_s: float = 20.0) -> Stall:
    deadline = time.monotonic() + within_s
    while (stall := dog.look()) is None:
        assert time.monotonic() < deadline, "no standstill was noticed"
        time.sleep(0.1)
    return stall


def _looks(dog: StallDetector, for_s: float) -> list[Stall | None]:
    seen, deadline = [], time.monotonic() + for_s
    while time.monotonic() < deadline:
        seen.append(dog.look())
        time.sleep(0.1)
    return seen


def test_a_stopped_trainer_is_stalled_until_it_goes_on(launch: Launch) -> None:
    handle = launch("train", steps=400)
    until(lambda: training(handle))
    dog = _watch(handle)
    assert set(_looks(dog, 3 * AFTER_S)) == {None}, "it writes a record in time"
    pid = process_of(handle).pid
    os.kill(pid, signal.SIGSTOP)
    stall = _stall_of(dog)
    assert stall.for_s >= AFTER_S
    assert (stall.phase, stall.step > 0) == ("training", True)
    assert f"process {pid} is stopped (SIGSTOP)" in stall.sentence
    assert dog.look() is stall, "it is noticed once"
    assert handle.folder.log.read_text().count("No journal record for") == 1
    os.kill(pid, signal.SIGCONT)
    until(lambda: dog.look() is None)
    handle.kill()
    end = handle.wait(10)
    assert end is not None
    assert (end.outcome, end.reason) == ("failed", TaskReason.KILLED)


def test_the_stacks_of_a_lock_that_nobody_gives_back_are_in_the_log(launch: Launch) -> None:
    handle = launch("hang")
    until(lambda: (status := handle.status()) is not None and status.step == 3)
    stall = _stall_of(_watch(handle))
    log = handle.folder.log.read_text()
    assert "=== " in log
    assert f"Stacks of {process_of(handle).pid}" in log
    assert "in _wait_for_ever" in log[log.index("=== ") :]
    assert log.count("most recent call first") >= 2, "all threads are shown"
    assert stall.where.startswith("_wait_for_ever (")
    assert "< hang (" in stall.where
    assert "since step 3 (training)" in stall.sentence
    assert handle.poll() is None, "being asked harms nobody"
    handle.kill()
    assert handle.wait(10) is not None
    assert handle.started
    exit_classification.add(handle.folder, handle.job.launch, "job.restarted", stall.sentence, phase="yielded")
    *_, event, progress = (handle.folder.journal_dir / f"{handle.job.launch}.jsonl").read_text().splitlines()
    assert '"job.restarted"' in event
    assert '"phase":"yielded"' in progress


def test_work_without_a_word_is_life_before_the_first_step(launch: Launch) -> None:
    handle = launch("prepare", busy_s=3 * AFTER_S)
    until(lambda: handle.status() is not None)
    dog = _watch(handle)
    while not (handle.folder.root / "prepared").exists():
        assert dog.look() is None
        time.sleep(0.1)
    assert _stall_of(dog).phase == "loading"
    handle.kill()
    assert handle.wait(10) is not None


def test_a_looker_that_stood_still_itself_blames_nobody(launch: Launch) -> None:
    handle = launch("hang")
    until(lambda: training(handle))
    now = 0.0
    dog = StallDetector(handle.folder, handle.job, 60, clock=lambda: now)
    dog.look()
    now += 3600  # it was stopped, or the machine slept
    assert dog.look() is None
    assert dog.silent_s <= 5
    handle.kill()
    assert handle.wait(10) is not None
