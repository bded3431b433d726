"""What a simulation does when a process that it looks at ends before its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tunefleet.simulation.sampling import Machine, Sampler


async def test_a_server_that_ends_leaves_what_was_seen_of_it(tmp_path: Path) -> None:
    (tmp_path / "tunefleet.db").write_bytes(b"x" * 100)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        sampler = Sampler(Machine(process.pid, tmp_path), lambda: 0)
        process.kill()
    sampler.start()
    await sampler.stop()
    found = sampler.server(0)
    assert (found.rss_start_bytes or 0) > 0
    assert (found.rss_end_bytes, found.cpu_share, found.database_bytes) == (None, None, 100)
