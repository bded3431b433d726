"""Run a test command and print what it cost in all: wall time, and processor time of every process that it started.

    python -m scripts.run_tests --budget 1050 -- python -m pytest -m "not proof"

Processes that outlive their parents (daemons, fork servers) become children of this one (Linux), so they count too.
The budget is in seconds of a machine whose calibration loop takes `REFERENCE_S`. Machines differ by a factor of two, so
the total is also given as a multiple of that loop. A run above its budget gets a warning and never fails for it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
LOOPS = 3
REFERENCE_S = 0.75
"""What the calibration loop takes on the machine for which budgets are given."""


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, help="CPU seconds on the reference machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    before = calibrate()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    with subprocess.Popen(command) as run:
        # A terminal's Ctrl-C goes to both; the command ends as it likes, and its cost is still printed.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: run.terminate())
        code = wait_for(run)
    wall = time.monotonic() - started
    spent = os.times()
    cpu = spent.children_user + spent.children_system
    loop = statistics.fmean((before, calibrate()))
    print(f"{cpu:.0f} CPU-s in {wall:.0f} s; calibration loop {loop:.2f} CPU-s; total / loop = {cpu / loop:.0f}")
    if options.budget and cpu / loop > (allowed := options.budget / REFERENCE_S):
        print(
            f"WARNING: above the budget of {allowed:.0f} loops ({options.budget:.0f} CPU-s at {REFERENCE_S} s a loop)"
        )
    return code


def wait_for(run: subprocess.Popen[bytes]) -> int:
    """Wait for the command, and meanwhile for whatever is orphaned; returns the command's exit code."""
    while True:
        pid, status = os.wait()
        if pid == run.pid:
            run.returncode = os.waitstatus_to_exitcode(status)
            break
    # What has ended and was not waited for. What still runs is not ours to end, and is not counted.
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
    return run.returncode if run.returncode >= 0 else 128 - run.returncode


def calibrate() -> float:
    """Return what ten million additions take, in CPU seconds: the least of a few loops."""
    taken = []
    for _ in range(LOOPS):
        started = time.process_time()
        total = 0
        for number in range(10_000_000):
            total += number
        taken.append(time.process_time() - started)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
