"""However a rank, the launcher or the keeper ends: nothing of the job is left, and the end says what it was."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.ranks.conftest import end, job, lives, ranks_of, until
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, Supervisor
from tunefleet.runtime.exit_classification import read_process

pytestmark = pytest.mark.torch


def kill(pid: int | None) -> None:
    assert pid
    os.kill(pid, signal.SIGKILL)


@pytest.mark.proof
def test_every_end_takes_all_ranks_along(supervisor: Supervisor) -> None:
    def start(name: str, **options: object) -> JobHandle:
        return supervisor.launch(job("plain_rank:main", job_id=name, **options))

    # All at once: most of the time goes into the launchers' imports.
    failing = start("failing", fails=1)
    killed, unlaunched = start("killed"), start("unlaunched", stubborn=True)
    orphaned, cancelled = start("orphaned", stubborn=True), start("cancelled")
    pids = {handle.job.job_id: ranks_of(handle) for handle in (failing, killed, unlaunched, orphaned, cancelled)}
    processes = {handle.job.job_id: read_process(handle.folder) for handle in (unlaunched, orphaned)}
    kill(pids["killed"][1])
    unlaunched_process, orphaned_process = processes["unlaunched"], processes["orphaned"]
    assert unlaunched_process is not None
    assert orphaned_process is not None
    kill(unlaunched_process.pid)
    kill(orphaned_process.keeper_pid)
    kill(orphaned_process.pid)
    cancelled.cancel(grace_s=1.0)

    failed = end(failing)
    assert (failed.reason, failed.error) == (TaskReason.BUG, "ValueError: the weather is bad")
    assert "plain_rank.py" in (failed.detail or "")
    ended = end(killed)
    assert (ended.reason, ended.returncode) == (TaskReason.KILLED, -signal.SIGKILL)
    assert "Rank 1 was killed by SIGKILL" in killed.folder.log.read_text()
    ended = end(unlaunched)
    assert (ended.reason, ended.returncode) == (TaskReason.KILLED, -signal.SIGKILL)
    assert end(orphaned).reason is TaskReason.KILLED
    assert end(cancelled).reason is TaskReason.CANCELLED_BY_USER
    for ranks in pids.values():
        until(lambda ranks=ranks: not any(map(lives, ranks)), 10)
    for handle in (failing, killed, unlaunched, orphaned, cancelled):
        until(lambda handle=handle: not handle.alive, 10)
        journals = list(handle.folder.journal_dir.iterdir())
        assert len(journals) == 1, "only rank 0 writes a journal"
