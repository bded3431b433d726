"""What the agent does by itself about a job: doubles of supervisor, launch and watchdog; a real walk, real rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import TrainExecutor
from tunefleet.agent.jobs.job import AgentJob, AgentRecord
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.agent.jobs.job_queue import JobTable
from tunefleet.agent.jobs.job_run import JobRun
from tunefleet.errors import MachineError
from tunefleet.executors.registry import Registry
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobEnd
from tunefleet.runtime.gpu.gpu_locks import GpuBusyError
from tunefleet.runtime.monitor import guard as guard_module
from tunefleet.runtime.monitor.elapsed_time import Interruption, RunClock, Watched, boot_name
from tunefleet.runtime.monitor.stall_detector import Stall
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.schemas.training_protocol.training import JobState
from tunefleet.settings import AgentSettings

KILLED = JobEnd(outcome="failed", reason=TaskReason.KILLED, error="It was killed.", launch="l1")
PAUSED = JobEnd(outcome="paused", reason=TaskReason.PAUSED, launch="l1")
YIELD = Interruption(launch="l1", why="yield", text="a game")


class Launch:
    """A double of a `JobHandle`: it lives until it is ended, or until `over`; notes how it was ended."""

    def __init__(self, job: Job, folder: JobFolder, over: Callable[[], bool] = lambda: False) -> None:
        self.job = job
        self.folder = folder
        self.over = over
        self.end: JobEnd | None = None
        self.done: list[str] = []

    def poll(self) -> JobEnd | None:
        if self.end is None and self.over():
            self.end = KILLED.model_copy(update={"outcome": "completed", "reason": TaskReason.FINISHED, "error": None})
        return self.end

    def kill(self) -> None:
        self.done.append("kill")
        self.end = KILLED

    def cancel(self, grace_s: float) -> None:
        self.done.append("cancel")
        self.end = self.end or JobEnd(outcome="cancelled", reason=TaskReason.ABORTED, launch="l1")

    def command(self, name: str, data: Any = None, command_id: str | None = None) -> None:
        self.done.append(name)
        self.end = PAUSED

    def acknowledge(self) -> None:
        self.done.append("read")


class Watch:
    """A double of the watchdog that sees a standstill."""

    silent_s = 700.0

    def __init__(self, *_: object) -> None:
        pass

    def look(self) -> Stall:
        return Stall(700.0, 5, "training", "loop.py:7", "the stacks")


class Agent:
    """One job on a machine with a GPU, and the launches that were made for it."""

    def __init__(self, tmp_path: Path, *, over: Callable[[AgentJob], bool] = lambda _: False, **spec: Any) -> None:
        record = AgentRecord(job_id="j", name="n", kind="train", spec=spec, order=0.0, state=JobState.RUNNING)
        self.job = AgentJob(JobFolder(tmp_path / "j"), record, lambda _: None)
        self.launches: list[Launch] = []
        self.refusals: list[MachineError] = []
        self._over = over
        self.results_dir = tmp_path
        self.site = AgentContext(
            settings=AgentSettings(_env_file=None, home=tmp_path),  # type: ignore[call-arg]
            jobs=self,  # type: ignore[arg-type]
            registry=Registry([TrainExecutor()]),
            fetch=lambda address, _: Path(address),
            gpus=self._gpus,
            backend=None,  # type: ignore[arg-type]
        )

    def _gpus(self, _: object) -> tuple[str, ...]:
        if self.refusals:
            raise self.refusals.pop(0)
        return ("GPU-a",)

    def folder(self, job_id: str) -> JobFolder:
        """Do the supervisor's part."""
        return JobFolder(self.results_dir / job_id)

    def launch(self, work: Job) -> Launch:
        """Do the supervisor's part."""
        self.launches.append(Launch(work, self.job.folder, lambda: self._over(self.job)))
        return self.launches[-1]

    def found(self, end: JobEnd | None, **record: Any) -> Launch:
        """Let the launch `l1` be there already, from an earlier agent."""
        job = TrainExecutor().job(self.job.offer(), launch="l1", inputs={})
        launch = Launch(job, self.job.folder, lambda: self._over(self.job))
        launch.end = end
        self.job.handle = launch  # type: ignore[assignment]
        self.job.note(launch="l1", **record)
        return launch

    def run(self) -> AgentRecord:
        """Run the job to its end."""
        JobRun(self.site, self.job, threading.Event()).run()
        return self.job.record


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_CHECK_S", 0.0)
    monkeypatch.setattr(guard_module, "StallDetector", Watch)


@pytest.mark.usefixtures("stalling")
@pytest.mark.parametrize(
    ("on_stall", "done", "state", "again"),
    [
        ("keep", ["read"], JobState.COMPLETED, 0),
        ("restart", ["kill", "read"], JobState.FAILED, guard_module.MAX_RESTARTS),
        ("fail", ["kill", "read"], JobState.FAILED, 0),
    ],
)
def test_a_standstill_is_said_and_acted_on(
    tmp_path: Path, on_stall: str, done: list[str], state: JobState, again: int
) -> None:
    agent = Agent(tmp_path, over=lambda job: on_stall == "keep" and bool(job.record.warnings), on_stall=on_stall)
    record = agent.run()
    assert "700 s" in record.warnings[0]
    assert (record.state, agent.launches[-1].done) == (state, done)
    assert [launch.done for launch in agent.launches[:-1]] == [["kill"]] * again
    if state is JobState.FAILED:
        assert "700 s" in (record.error or "")
        assert record.detail == "the stacks"


@pytest.mark.usefixtures("stalling")
def test_restarts_are_counted_over_agents(tmp_path: Path) -> None:
    agent = Agent(tmp_path, on_stall="restart")
    launch = agent.found(None, watched=Watched(stall_restarts=guard_module.MAX_RESTARTS))
    record = agent.run()
    assert (record.state, launch.done, agent.launches) == (JobState.FAILED, ["kill", "read"], [])
    assert "restarted 3 times" in (record.error or "")


def test_a_job_that_runs_too_long_is_ended_and_time_counts_over_launches(tmp_path: Path) -> None:
    agent = Agent(tmp_path, limits={"max_runtime_s": 50})
    agent.job.note(watched=Watched(clock=RunClock(ran_s=51.0)))
    record = agent.run()
    assert agent.launches[0].done == ["cancel", "read"]
    assert record.state is JobState.FAILED
    assert record.error == "The job ran longer than limits.max_runtime_s (50 s) allows."


def test_each_attempt_has_its_own_time(tmp_path: Path) -> None:
    job_table = JobTable(Agent(tmp_path).site)
    job = job_table.submit(AgentRecord(job_id="again", name="n", kind="train", spec={}, order=0.0))
    job.note(state=JobState.FAILED, watched=Watched(clock=RunClock(ran_s=51.0), stall_restarts=3))
    job_table.renew(AgentRecord(job_id="again", name="n", kind="train", spec={}, order=0.0, attempt=2))
    assert (job.record.state, job.record.attempt, job.record.watched) == (JobState.PENDING, 2, Watched())


def test_who_cancels_a_job_that_runs_too_long_has_cancelled_it(tmp_path: Path) -> None:
    agent = Agent(tmp_path, limits={"max_runtime_s": 50})
    agent.found(None, watched=Watched(clock=RunClock(ran_s=51.0)), wish="cancel")
    assert (agent.run().state, agent.job.record.error) == (JobState.CANCELLED, None)


def test_a_paused_job_does_not_age(tmp_path: Path) -> None:
    agent = Agent(tmp_path, limits={"max_runtime_s": 1000})
    agent.found(None, watched=Watched(clock=RunClock(ran_s=5.0, running_since=0.0, boot=boot_name())), wish="pause")
    record = agent.run()
    assert record.state is JobState.PAUSED
    assert record.watched.clock.running_since is None
    assert record.watched.clock.ran_s > 5.0


@pytest.mark.parametrize(
    ("end", "wish", "state", "launched"),
    [
        (KILLED, None, JobState.COMPLETED, True),
        (PAUSED, None, JobState.COMPLETED, True),
        (KILLED, "cancel", JobState.CANCELLED, False),
        (PAUSED, "pause", JobState.PAUSED, False),
        (KILLED, "pause", JobState.PAUSED, True),
    ],
)
def test_a_job_that_made_way_goes_on_with_the_next_agent_unless_that_is_not_wanted(
    tmp_path: Path, end: JobEnd, wish: str | None, state: JobState, launched: bool
) -> None:
    agent = Agent(tmp_path, over=lambda job: job.record.wish is None)
    agent.found(end, watched=Watched(interruption=YIELD), wish=wish, wishes=1)
    assert agent.run().state is state
    assert bool(agent.launches) == launched
    assert agent.job.record.watched.interruption == (None if launched else YIELD)


@pytest.mark.parametrize(("rebooted", "state"), [(True, JobState.COMPLETED), (False, JobState.FAILED)])
def test_a_job_that_a_restart_of_the_machine_ended_goes_on(tmp_path: Path, rebooted: bool, state: JobState) -> None:
    agent = Agent(tmp_path, over=lambda _: True)
    agent.found(KILLED, watched=Watched(clock=RunClock(boot="another" if rebooted else boot_name())))
    assert agent.run().state is state


def test_a_job_waits_for_a_gpu_in_use_and_not_for_one_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefleet.agent.jobs.job_run._GPU_PAUSE_S", 0.01)
    agent = Agent(tmp_path, over=lambda _: True)
    agent.refusals = [GpuBusyError("in use"), GpuBusyError("in use")]
    assert agent.run().state is JobState.COMPLETED
    assert [launch.job.gpus for launch in agent.launches] == [("GPU-a",)]
    agent = Agent(tmp_path / "other", over=lambda _: True)
    agent.refusals = [MachineError("none matches")]
    assert (agent.run().state, agent.job.record.error, agent.launches) == (JobState.FAILED, "none matches", [])
