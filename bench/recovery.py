"""How soon a task runs again after its worker or the server was killed, and whether a result is lost or doubled.

    python bench/recovery.py --json FILE            # about ten minutes
    python bench/recovery.py --json FILE --quick    # about two minutes

Workers are killed with SIGKILL, with all of their processes, in the middle of a task of one second, as the loss of a
machine does it; another one is there. Ours keeps tasks in SQLite, synced at each commit; the peers theirs in the memory
of a Redis, with acknowledgement after the end. How long the silent are waited for is named in each line: first a short
window for all, then what is usual. With Celery and Taskiq the window is also the longest that a task may last, else it
runs twice; with Dramatiq and ours it is not.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import httpx
from _common import BROKEN_STATUS, verdict
from _limit import end_after
from _recovery_kills import Crew, Found, kill_workers, runs_of, until
from _recovery_systems import Ours, System, peer, tunefleet
from _report import BUDGETS, Figure, Ratio, Report, decided, kept_if
from _report import Peer as Beside
from peers.environment import QUEUES, interpreter, version_of

SHORT_S = {"Tunefleet": 1.0, "celery": 3.0, "dramatiq": 3.0, "taskiq": 3.0}
USUAL_S = {"Tunefleet": 30.0, "celery": 60.0, "dramatiq": 60.0, "taskiq": 60.0}
KILLS = {"Tunefleet": sys.maxsize, "celery": 5, "dramatiq": 15, "taskiq": 15}
"""At most so many kills of each, one at a time: Celery takes up to two minutes to find what a dead worker had."""
SERVER_BUDGET_S = 3.0
WORKER_MARGIN_S = 2.0
LIMIT_S = 1500


def opened(name: str, python: Path, window_s: float) -> AbstractContextManager[System]:
    return tunefleet(window_s) if name == "Tunefleet" else peer(name, python, window_s)


def measured(name: str, python: Path, window_s: float, kills: int, together: int = 1) -> Found:
    with opened(name, python, window_s) as system:
        found = kill_workers(system, kills, together)
    said = f"{statistics.median(found.taken_s):6.2f} s, at most {max(found.taken_s):6.2f}" if found.taken_s else "never"
    print(
        f"  {name:10} window {window_s:4.0f} s: {said}; {found.kills} kills: lost {found.lost}, "
        f"doubled {found.doubled} {found.given_up or ''}".rstrip(),
        flush=True,
    )
    return found


def all_of(python: Path, windows: dict[str, float], kills: dict[str, int], together: int) -> dict[str, Found]:
    """Measure all systems at once: they mostly wait, and a busy machine is then busy for all."""
    with ThreadPoolExecutor(len(windows)) as pool:
        doing = {
            name: pool.submit(measured, name, python, window_s, kills[name], together)
            for name, window_s in windows.items()
        }
        return {name: each.result() for name, each in doing.items()}


def server_kills(times: int) -> list[float]:
    """Return seconds from SIGKILL of the server to the first line of a task that was submitted after it."""
    taken: list[float] = []
    # A fleet waits twice as long after each kill that follows the one before soon: a fresh one is taken after two.
    while len(taken) < times:
        with tunefleet(5.0) as system:
            taken += _kills_of(system, min(2, times - len(taken)))
    return taken


def _kills_of(system: Ours, times: int) -> list[float]:
    taken, crew = [], Crew(system)
    try:
        crew.start()
        crew.start()
        system.await_workers(2)
        for number in range(times):
            pid = system.fleet.pid("server")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed_at = time.time()
            if not until(partial(_serves, system.fleet.url), 60.0):
                raise SystemExit("The server did not come back.")
            system.submit([number])
            if not until(partial(_begun, system, number), 60.0):
                raise SystemExit("The server places nothing.")
            taken.append(next(at for task, _, at in runs_of(system) if task == number) - killed_at)
            time.sleep(1.5)
    finally:
        crew.end()
    return taken


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz", timeout=5).is_success
    except httpx.TransportError:
        return False


def _begun(system: System, number: int) -> bool:
    return any(task == number for task, _, _ in runs_of(system))


def tell(report: Report, found: dict[str, Found], versions: dict[str, str], what: str) -> bool:
    """Add the rows of a window; returns whether our budgets are kept."""
    ours = found["Tunefleet"]
    limit_s = ours.window_s + WORKER_MARGIN_S
    figure = Figure.of(ours.taken_s, "s")
    kept = decided(verdict(figure.low, figure.high, limit_s))
    none = ours.lost == 0 and ours.doubled == 0 and ours.given_up is None
    for name, theirs in found.items():
        if name == "Tunefleet":
            continue
        usual = f"{what}: silence of {ours.window_s:g} s (ours) / {theirs.window_s:g} s ({name})"
        note = f"{theirs.kills} kills of {name}; " + (theirs.given_up or "all tasks came to their end")
        if name == "taskiq":
            note += "; it looks for the dead's tasks only when new ones come, so it is sent an empty one each 0.5 s"
        if name == "dramatiq":
            note += "; it is set to look for dead workers at each command (default: at one in a thousand)"
        beside = Beside.of(name, versions[name], theirs.taken_s, "s") if theirs.taken_s else None
        ratio = None
        if beside is not None:
            pairs = min(len(ours.taken_s), len(theirs.taken_s))
            ratio = Ratio.of([a / b for a, b in zip(ours.taken_s[:pairs], theirs.taken_s[:pairs], strict=True)])
        report.row(
            f"killed worker → its task runs elsewhere, {usual}", figure, beside,
            ratio=ratio, budget=BUDGETS["recovery"], verdict=kept, samples=ours.kills, note=note,
        )  # fmt: skip
        for word, said in (("lost", "results lost"), ("doubled", "runs to the end beyond the first")):
            report.row(
                f"{said}, {usual}", Figure.exactly(getattr(ours, word), "tasks"),
                Beside.of(name, versions[name], [getattr(theirs, word)], "tasks"),
                budget=BUDGETS["losses"], verdict=kept_if(none), samples=ours.kills,
                note=f"{ours.kills} kills of ours, {note}",
            )  # fmt: skip
    return none and kept != "BROKEN"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Where the report goes.")
    parser.add_argument("--quick", action="store_true", help="Three kills of each, and no usual windows.")
    parser.add_argument("--kills", type=int, help="Of our workers (default: 100; --quick: 3).")
    options = parser.parse_args()
    end_after(LIMIT_S)
    kills = options.kills or (3 if options.quick else 100)
    python = interpreter("queues", QUEUES)
    versions = {name: version_of(python, name) for name in SHORT_S if name != "Tunefleet"}
    report = Report("recovery", quick=options.quick)
    print("Kill of a busy worker, short windows, one at a time", flush=True)
    short = all_of(python, SHORT_S, {name: min(kills, most) for name, most in KILLS.items()}, together=1)
    kept = tell(report, short, versions, "one kill at a time")
    rounds: list[tuple[str, Callable[[], dict[str, Found]]]] = []
    if not options.quick:
        rounds.append(("four kills in one window", partial(all_of, python, USUAL_S, dict.fromkeys(USUAL_S, 4), 4)))
    for what, run in rounds:
        print("Kill of busy workers, usual windows", flush=True)
        kept = tell(report, run(), versions, what) and kept
    taken = server_kills(2 if options.quick else 10)
    figure = Figure.of(taken, "s")
    said = verdict(figure.low, figure.high, SERVER_BUDGET_S)
    print(f"kill -9 of the server → a new task runs: {figure.median:.2f} s, at most {max(taken):.2f}: {said}")
    report.row(
        "kill -9 of the server → the first line of a new task", figure, budget=BUDGETS["recovery"],
        verdict=decided(said), samples=len(taken), note="SQLite FULL, Redis, two workers; the fleet starts it again",
    )  # fmt: skip
    report.write(options.json)
    return 0 if kept and said != "BROKEN" else BROKEN_STATUS


if __name__ == "__main__":
    sys.exit(main())
