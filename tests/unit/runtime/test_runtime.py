"""The run clock counts what a job's launches ran, whatever machine and watcher do."""

from __future__ import annotations

from tunefleet.runtime.monitor.elapsed_time import RunClock, Runtime


class Machine:
    """A fake machine: its monotonic clock and its boot."""

    def __init__(self) -> None:
        self.now, self.boot = 1000.0, "boot-1"

    def runtime(self, clock: RunClock, limit_s: float | None = 100.0) -> Runtime:
        """What a process builds from what is on disk."""
        return Runtime(clock, limit_s, now=lambda: self.now, boot=lambda: self.boot)


def test_it_goes_on_while_the_watcher_is_away_and_stands_while_no_job_lives() -> None:
    machine = Machine()
    noted = machine.runtime(RunClock()).start()
    machine.now += 60
    runtime = machine.runtime(RunClock.model_validate_json(noted.model_dump_json()))
    assert runtime.ran_s == 60
    noted = runtime.stop()  # it makes way
    machine.now += 10_000
    runtime = machine.runtime(noted)
    assert (runtime.ran_s, runtime.exceeded) == (60, False)
    runtime.start()
    machine.now += 41
    assert runtime.exceeded


def test_of_another_boot_what_was_noted_last_counts() -> None:
    machine = Machine()
    runtime = machine.runtime(RunClock())
    runtime.start()
    machine.now += 61
    assert runtime.worth_noting
    noted = runtime.start()
    machine.now += 30
    machine.boot, machine.now = "boot-2", 5.0
    runtime = machine.runtime(noted)
    assert runtime.ran_s == 61
    runtime.start()
    machine.now += 10
    assert runtime.ran_s == 71


def test_without_a_limit_nothing_is_exceeded_or_noted() -> None:
    machine = Machine()
    runtime = machine.runtime(RunClock(), None)
    runtime.start()
    machine.now += 1e6
    assert not runtime.exceeded
    assert not runtime.worth_noting
