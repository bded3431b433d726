"""While inputs are fetched: what is fetched is said, every wish acts within two seconds, and no wait lasts for ever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import Running, World
from tunefleet.client.transfer import OnProgress, Progress, ignore_progress
from tunefleet.errors import UnreachableError
from tunefleet.schemas.job_folder import JobStatus
from tunefleet.schemas.worker_guide import ResultFile
from tunefleet.schemas.worker_link import InputRef, ResumeFrom
from tunefleet.worker.jobs import fetch_progress

SOON_S = 2.0
INPUTS = {"data.path": InputRef(digest="ab" * 32, name="rows.jsonl")}


class Slow:
    """A file that comes for as long as a test wants, and says how far it is."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def fetch(self, digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        self.begun.set()
        on_progress(Progress("downloading", "rows.jsonl", 37_000_000, 90_000_000))
        self.goes_on.wait(30)
        (dest / "rows.jsonl").write_text("{}\n")
        return dest / "rows.jsonl"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "results")


@pytest.fixture
def slow(world: World) -> Slow:
    made = Slow()
    world.files.fetch_artifact = made.fetch  # type: ignore[method-assign]
    return made


def said(world: World, token: str) -> str:
    return next((each.fetching[token] for each in reversed(world.server.exchanges) if token in each.fetching), "")


@pytest.mark.parametrize(
    ("wish", "outcome", "reason"),
    [("cancel", "cancelled", "cancelled_by_user"), ("pause", "paused", "paused")],
)
def test_a_wish_acts_while_a_file_comes(world: World, slow: Slow, wish: str, outcome: str, reason: str) -> None:
    token = world.server.offer(inputs=INPUTS)
    with Running(world):
        assert slow.begun.wait(5)
        asked = time.monotonic()
        world.server.want(token, wish)
        finish = world.server.finished(token)
        assert time.monotonic() - asked < SOON_S
        assert (finish.outcome, finish.reason) == (outcome, reason)
        assert world.jobs.all == []
        slow.goes_on.set()


@pytest.mark.parametrize("why", ["the worker stops", "the machine is taken away", "the attempt is void"])
def test_a_worker_leaves_while_a_file_comes(world: World, slow: Slow, why: str) -> None:
    token = world.server.offer(inputs=INPUTS)
    running = Running(world)
    acts: dict[str, Callable[[], None]] = {
        "the worker stops": running.stop,
        "the machine is taken away": running.worker.make_way,
        "the attempt is void": lambda: world.server.void(token),
    }
    with running:
        assert slow.begun.wait(5)
        asked = time.monotonic()
        acts[why]()
        if why == "the machine is taken away":
            assert world.server.finished(token).outcome == "released"
        world.server.wait_for(lambda: why != "the attempt is void" or not world.records())
        assert time.monotonic() - asked < SOON_S
        slow.goes_on.set()
    assert world.jobs.all == []


def test_what_is_fetched_is_said_and_forgotten_when_the_job_runs(world: World, slow: Slow) -> None:
    token = world.server.offer(inputs=INPUTS)
    with Running(world):
        world.server.wait_for(lambda: " of " in said(world, token))
        assert said(world, token) == "fetching rows.jsonl, 37 of 90 MB"
        slow.goes_on.set()
        world.job()
        world.server.offer("task-2", kind="echo")  # something to say
        world.server.wait_for(lambda: token not in world.server.exchanges[-1].fetching)


def test_a_file_that_does_not_come_is_said_and_ends_while_the_server_hears_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        raise UnreachableError("http://127.0.0.1:8000 does not respond.")

    world.files.fetch_artifact = away  # type: ignore[method-assign]
    monkeypatch.setattr(fetch_progress, "PATIENCE_S", 1.5)
    caplog.set_level(logging.WARNING)
    token = world.server.offer(inputs=INPUTS)
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", "network")
    assert "Could not fetch rows.jsonl for" in (finish.error or "")
    assert "TUNEFLEET_SERVER_URL" in (finish.error or "")
    assert "fetching rows.jsonl failed, retrying: http://127.0.0.1:8000 does not respond." in said(world, token)
    assert "Could not fetch rows.jsonl" in caplog.text


def test_a_file_of_a_server_that_is_down_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, tries = world.files.fetch_artifact, []

    def away(digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        tries.append(time.monotonic())
        if len(tries) < 6:
            raise UnreachableError("It does not respond.")
        return fetch(digest, dest)

    world.files.fetch_artifact = away  # type: ignore[method-assign]
    monkeypatch.setattr(fetch_progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(fetch_progress, "ANSWERED_S", 0.0)
    world.server.offer(inputs=INPUTS)
    with Running(world):
        world.job()
    assert len(tries) == 6


FILES = (
    ResultFile(name="final_lora/adapter_model.safetensors", size_bytes=2_000_000, sha256="0" * 64, url="http://s/f"),
)
"""What the earlier task has left."""
MODEL = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
TRAIN = {"taskType": "lora_sft", "model": MODEL, "data": {"prompts": ["a"]}}
OF_TASK = {**TRAIN, "checkpoint": {"load": {"taskId": "task-0"}}}
OF_STAGE = {"taskType": "python", "code": "def main(inputs):\n    return 1\n", "upstream": {"a": "task-0"}}
AWAY = InputRef(digest="cd" * 32, name="checkpoint-3")
FETCHED: dict[str, tuple[dict[str, Any], str]] = {
    "an upload": ({"inputs": INPUTS, "spec": TRAIN}, "rows.jsonl"),
    "a checkpoint": ({"resume": ResumeFrom(step=3, exact=True, checkpoint=AWAY), "spec": TRAIN}, "checkpoint-3"),
    "an adapter of a task": ({"spec": OF_TASK}, "final_lora/adapter_model.safetensors"),
    "the list of a task's files": ({"spec": OF_TASK}, "the list of the files"),
    "the result of a stage": ({"spec": OF_STAGE}, "the result of a"),
}


@pytest.mark.parametrize("what", FETCHED)
def test_whatever_is_fetched_is_said_and_ends_while_the_server_hears_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    more, name = FETCHED[what]
    comes: list[str] = []

    def away(*_: Any, on_progress: OnProgress = ignore_progress) -> Any:
        if not comes:
            on_progress(Progress("downloading", name, 1_000_000, 2_000_000))
        comes.append(what)
        raise UnreachableError("http://127.0.0.1:8000 does not respond.")

    listed = what == "an adapter of a task"
    monkeypatch.setattr(world.files, "fetch_artifact", away)
    monkeypatch.setattr(world.files, "fetch_result_file", away)
    monkeypatch.setattr(world.files, "result_files", (lambda _: FILES) if listed else away)
    monkeypatch.setattr(fetch_progress, "PATIENCE_S", 0.1)
    token = world.server.offer(**more)
    with Running(world):
        finish = world.server.finished(token)
    assert comes
    assert (finish.outcome, finish.reason) == ("failed", "network"), finish.error
    assert f"{name}" in (finish.error or "")
    assert "Could not fetch" in (finish.error or "")
    notes = {each.fetching[token] for each in world.server.exchanges if token in each.fetching}
    assert any("failed, retrying" in note and name in note for note in notes), notes


@pytest.mark.parametrize("told", [None, JobStatus(state="starting", phase="loading", at=0.0, pid=1)])
def test_a_pause_acts_while_the_job_loads(world: World, told: JobStatus | None) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
        job.told = told
        asked = time.monotonic()
        world.server.want(token, "pause")
        finish = world.server.finished(token)
        assert time.monotonic() - asked < SOON_S
    assert (finish.outcome, finish.reason) == ("paused", "paused")
    assert job.ended is not None


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "fetch"}


@pytest.mark.parametrize("how", ["it waits for another try", "bytes come"])
def test_what_is_fetched_from_the_server_is_let_go_when_it_is_not_wanted(world: World, how: str) -> None:
    begun, before = threading.Event(), _threads()

    def fetch(digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        begun.set()
        if how == "it waits for another try":
            raise UnreachableError("It does not respond.")
        for _ in range(600):
            on_progress(Progress("downloading", "rows.jsonl", 1, 2))
            time.sleep(0.05)
        return dest

    world.files.fetch_artifact = fetch  # type: ignore[method-assign]
    token = world.server.offer(inputs=INPUTS)
    with Running(world):
        assert begun.wait(10)
        world.server.want(token, "cancel")
        world.server.finished(token)
        for each in _threads() - before:
            each.join(10)
            assert not each.is_alive()
