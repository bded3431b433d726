"""What a fork of a trainer's process has, and what is left of one that has ended."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.trainer_control.test_journal import opened, records
from tunefleet.trainer_control import process_identity


def test_a_process_that_is_gone_has_no_start_time() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_identity.process_started_at(pid) is None  # a zombie is no process any more
    os.waitpid(pid, 0)
    assert process_identity.process_started_at(pid) is None


def test_a_forked_child_does_not_write_into_its_parents_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.metric(1, {"loss": 1.0})
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                writer.metric(2, {"loss": 2.0})
                writer.close()
                os.write(write_end, b"ok")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(write_end)
        assert os.read(read_end, 2) == b"ok"
        os.close(read_end)
    assert [record.get("step") for record in records(writer)] == [None, 1]
