"""Run a test command and print what it cost in all: wall time, and CPU time of every process that it started.

    python -m scripts.run_tests --budget 1050 -- python -m pytest --layer default

Processes that outlive their parents (daemons, fork servers) become children of this one (Linux), so they count too.

Machines differ by a factor of two, and one that does other work counts more CPU seconds for the same work. So a short
fixed loop is timed again and again during the run, and the total is also given as a multiple of it. The budget is in
CPU seconds of a machine that needs `REFERENCE_S` for the loop. A run above it gets a warning and never fails for it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
LOOP = 2_000_000
"""Additions of the calibration loop."""
PAUSE_S = 20.0
"""Between two measurements of it: it takes half a percent of one processor."""
REFERENCE_S = 0.1


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, help="CPU seconds on the reference machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    loops = [calibrate()]
    over = threading.Event()
    calibrating = threading.Thread(target=keep_calibrating, args=(loops, over), daemon=True)
    started = time.monotonic()
    # A shell starts what is in its background with SIGINT ignored, and tests that press Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command) as run:
        # A terminal's Ctrl-C goes to both; the command ends as it likes, and its cost is still printed.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: run.terminate())
        calibrating.start()
        code = wait_for(run)
    wall = time.monotonic() - started
    over.set()
    spent = os.times()
    cpu, loop = spent.children_user + spent.children_system, statistics.median(loops)
    print(f"{cpu:.0f} CPU-s in {wall:.0f} s; calibration loop {loop:.3f} CPU-s; total / loop = {cpu / loop:.0f}")
    if options.budget and cpu / loop > (allowed := options.budget / REFERENCE_S):
        print(f"WARNING: above the budget of {allowed:.0f} ({options.budget:.0f} CPU-s at {REFERENCE_S} s a loop)")
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


def keep_calibrating(loops: list[float], over: threading.Event) -> None:
    """Time the loop until the run is over."""
    while not over.wait(PAUSE_S):
        loops.append(calibrate())


def calibrate() -> float:
    """Return the CPU seconds of one loop."""
    started = time.thread_time()
    total = 0
    for number in range(LOOP):
        total += number
    return time.thread_time() - started


if __name__ == "__main__":
    sys.exit(main())
