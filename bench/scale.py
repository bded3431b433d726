"""What a fleet costs its server as it grows: decisions a second, memory and processor, over workers and over the queue.

    python bench/scale.py            # long: up to 5,000 workers and 100,000 queued tasks
    python bench/scale.py --quick    # some minutes: up to 100 workers and 1,000 queued tasks
    python bench/scale.py --only decisions      # the third series alone, minutes
    python bench/scale.py --gate     # 1,000 workers alone: fails unless all is placed, once, in little memory
    python bench/scale.py --document # one JSON document, for docs/explanation/scale.md
    python bench/scale.py --plot cost.svg

Each load is a real server in a process of its own, on an empty store (SQLite, synced), which `tunefleet simulate` loads
with workers that keep the protocol: they register, hold an exchange open, renew, accept, finish. Three series:

1. Over workers: 10, 100 and 1,000 with the renewals of real ones, and 5,000 that renew every 45 s and no more often,
   which is named in the line. Three tasks for each worker, submitted while they work. A load that is not done after
   some minutes is ended, and says so.
2. Over the queue: 1,000 to 100,000 tasks are queued before 100 workers come, which then take from it for a while. A
   decision is an offer that has reached a worker: what bench/placement.py measures in one process, here with all that
   stands around it.
3. Decisions alone, as bench/placement.py measures them: 10 to 5,000 workers, each with 1,000 to 100,000 queued tasks.

A line of the first two says whether its decisions a second are the demand, which is what the workers can take, or the
capacity of server and load on one machine. Those of the third are capacity. The budget holds: at least 1,000 decisions
a second with 100,000 queued tasks and 5,000 workers, their time flat (`_decisions.FLAT`), and 150 MB of an idle server.

Named are slopes, not points alone: the straight line through the loads, and the power of the load that a cost grows
with. There is no peer that could be loaded with the same protocol. A line that ends in "generator" was limited by what
loads the server, so that the server can do more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path

import _decisions as decisions
import _report as reporting
import psutil

from tunefleet.cli.local_cluster.simulate_target import SimulationTarget
from tunefleet.errors import MachineError
from tunefleet.simulation import curves
from tunefleet.simulation.curves import Series, series
from tunefleet.simulation.load_report import Report
from tunefleet.simulation.plan import DEFAULT_GPUS, Plan, read_gpus

WITH_RENEWALS = (10, 100, 1_000)
SELDOM = 5_000
QUEUES = (1_000, 10_000, 100_000)
QUICK_WORKERS, QUICK_QUEUES = (10, 30, 100), (100, 300, 1_000)
TAKERS, TAKEN_S = 100, 0.1
MIB = 1 << 20
WELL_QUICK = "a decision takes no longer in a longer queue; its rate has a budget at full size alone"
BOUND_S = 240.0
"""A load over workers ends after so long, whatever is left; so long they may take to come."""
GATE = 1_000
DEMAND = 0.9
"""From this part of what the workers can take, it is they who limit the decisions."""
IDLE_BYTES = 150e6
"""A server that idles takes no more."""
WORKER_BYTES = 250e3
"""Nor more than this for each worker on top."""


def load(plan: Plan, *, renewals: bool = True) -> Report:
    """Drive one load on a server of its own."""

    async def drive() -> Report:
        site = SimulationTarget(link="http", renewals=renewals, url=None, key=None)
        async with site.running(plan, None, lambda _: None) as one:
            return await one.run()

    return asyncio.run(drive())


def over_workers(counts: tuple[int, ...], task_s: float) -> list[Report]:
    """Measure the first series, with renewals."""
    return [_shown(load(_bounded(count, task_s)), task_s) for count in counts]


def seldom_renewing(count: int, task_s: float) -> Report | None:
    """Measure the largest fleet; None if it could not be brought together in time, which is said."""
    try:
        return _shown(load(_bounded(count, task_s), renewals=False), task_s)
    except MachineError as error:
        print(f"  {count:>6,} workers: NOT MEASURED: {error}", file=sys.stderr, flush=True)
        return None


def over_the_queue(lengths: tuple[int, ...], for_s: float) -> list[Report]:
    """Measure the second series."""
    found = []
    for length in lengths:
        plan = _plan(TAKERS, length, TAKEN_S).model_copy(update={"fill_first": True, "for_s": for_s})
        found.append(_shown(load(plan), TAKEN_S))
    return found


def gate() -> list[str]:
    """Load a server with a thousand workers, and return what is not as it must be."""
    one = _shown(load(_bounded(GATE, 5.0)), 5.0)
    allowed, most = IDLE_BYTES + GATE * WORKER_BYTES, one.server.rss_max_bytes
    found = {
        f"{one.completed:,} of {one.tasks:,} tasks were placed and run": one.completed < one.tasks,
        f"{one.for_nothing} tasks were run by workers that were taken for lost": one.for_nothing > 0,
        f"the server took {(most or 0) / 1e6:.0f} MB, more than {allowed / 1e6:.0f}": (most or 0) > allowed,
    }
    return [*faults(one), *(what for what, is_so in found.items() if is_so)]


def faults(one: Report) -> list[str]:
    """Return what of a load is not as it must be, however large it is."""
    at, idle = f"with {one.workers:,} workers and {one.tasks:,} tasks", one.server.rss_start_bytes
    found = {
        f"{one.lost} tasks were lost {at}": one.lost > 0,
        f"{one.doubled} tasks were counted twice {at}": one.doubled > 0,
        # What is not known is no proof that it is little.
        f"the server's memory cannot be read {at}": idle is None or one.server.rss_max_bytes is None,
        f"an idle server takes {(idle or 0) / 1e6:.0f} MB, more than {IDLE_BYTES / 1e6:.0f}": (idle or 0) > IDLE_BYTES,
    }
    return [what for what, is_so in found.items() if is_so]


def _bounded(workers: int, task_s: float) -> Plan:
    return _plan(workers, 3 * workers, task_s).model_copy(update={"for_s": BOUND_S, "register_within_s": BOUND_S})


def _plan(workers: int, tasks: int, task_s: float) -> Plan:
    return Plan(workers=workers, tasks=tasks, task_s=task_s, gpus=read_gpus(DEFAULT_GPUS))


def _shown(one: Report, task_s: float) -> Report:
    """Print a load as soon as it is over; workers can take one task each in `task_s`, and no more."""
    cost, spoken, demand = one.server, one.exchange, one.workers / task_s
    which = "demand" if (one.decisions_per_s or 0) >= DEMAND * demand else f"capacity, of {demand:,.0f} wanted"
    print(
        f"  {one.workers:>6,} workers {one.tasks:>8,} tasks{'' if one.renewals else ' renewing every 45 s at most'}: "
        f"{one.decisions_per_s or 0:>8,.1f} decisions/s ({which}), {one.finished_per_s or 0:>8,.1f} tasks/s, "
        f"memory {_mib(one)}, processor {cost.cpu_share or 0:.2f} cores "
        f"({cost.cpu_per_task_ms or 0:.2f} ms a task), exchange p95 {spoken.p95_ms or 0:,.1f} ms, "
        f"{one.renewals_per_s:,.1f} renewals/s, lost {one.lost}, twice {one.doubled}"
        f"{f', run for nothing {one.for_nothing}' if one.for_nothing else ''}"
        f"{f', ENDED AFTER {one.took_s:.0f} s with {one.left:,} left' if one.ended != 'done' else ''}"
        f"{', generator' if one.generator.bottleneck else ''}",
        file=sys.stderr,
        flush=True,
    )
    return one


def _mib(one: Report) -> str:
    most = one.server.rss_max_bytes
    return "not known" if most is None else f"{most / MIB:>7,.1f} MiB"


def _slopes(name: str, found: Series, by: str) -> None:
    print(name)
    for curve in found.curves:
        power = "" if curve.exponent is None else f", grows with {by}^{curve.exponent:.2f}"
        print(f"  {curve.name:<24} {curve.per_1000:+12,.3f} per 1,000 {by}{power}")


def _report(fleets: list[Report], queues: list[Report], largest: Report | None, quick: bool) -> reporting.Report:
    told = reporting.Report("scale", quick=quick)
    over = [*fleets, *([] if largest is None else [largest])]
    for one in [*over, *queues]:
        rarely = ", renewing every 45 s at most" if one is largest else ""
        told.row(
            f"{one.workers:,} simulated workers, {one.tasks:,} tasks{rarely}",
            reporting.Figure.exactly(one.decisions_per_s or 0.0, "decisions/s"),
            samples=one.completed,
            note=f"server: {_mib(one).strip()}, {one.server.cpu_per_task_ms or 0:.2f} ms "
            f"of processor a task; lost {one.lost}, twice {one.doubled}"
            f"{f', run for nothing {one.for_nothing}' if one.for_nothing else ''}",
        )  # fmt: skip
    known = [(float(one.workers), most / MIB) for one in over if (most := one.server.rss_max_bytes) is not None]
    line = reporting.Line("memory of the server", [workers for workers, _ in known], [mib for _, mib in known])
    told.plot("Memory of a server over its workers", "workers", "MiB", [line])
    return told


def _machine() -> str:
    memory = psutil.virtual_memory().total / (1 << 30)
    cpus = os.cpu_count()
    return f"{cpus} cores, {memory:.0f} GiB, {platform.system()}, load average {os.getloadavg()[0]:.1f}"


def main() -> int:
    """Measure, print, and return 1 if a task was lost or counted twice, or a budget is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small loads")
    parser.add_argument("--document", action="store_true", help="print one JSON document of the first two series")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report of the first two series as well")
    parser.add_argument("--only", choices=["decisions"], help="this series alone")
    parser.add_argument("--gate", action="store_true", help="1,000 workers alone; fails unless all is as it must be")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw each cost over the workers")
    options = parser.parse_args()
    if (options.gate or options.only) and (options.document or options.json or options.plot):
        parser.error("--document, --json and --plot are of the first two series")
    if options.plot is not None:
        curves.check(options.plot)
    print(f"{_machine()}; the simulated workers run on the same machine", file=sys.stderr)
    if options.gate:
        return _said(gate(), "all was placed, once, in little memory")
    if options.only == "decisions":
        return _said(_decide(options.quick), WELL_QUICK if options.quick else "decisions keep their budget")
    counts, lengths = (QUICK_WORKERS, QUICK_QUEUES) if options.quick else (WITH_RENEWALS, QUEUES)
    fleets = series(over_workers(counts, 1.0 if options.quick else 5.0))
    largest = None if options.quick else seldom_renewing(SELDOM, 5.0)
    queues = series(over_the_queue(lengths, 10.0 if options.quick else 30.0), by="tasks")
    if options.plot is not None:
        curves.draw_series(fleets, options.plot)
    _report(list(fleets.loads), list(queues.loads), largest, options.quick).write(options.json)
    if options.document:
        told = "null" if largest is None else largest.model_dump_json()
        machine = f'"{_machine()}"'
        print(
            f'{{"machine": {machine}, "workers": {fleets.model_dump_json()}, "queue": {queues.model_dump_json()}, '
            f'"seldom_renewing": {told}}}'
        )
    else:
        _slopes("Over workers, with renewals", fleets, "workers")
        _slopes(f"Over the queue, {TAKERS} workers", queues, "tasks")
    loads = [*fleets.loads, *queues.loads, *([] if largest is None else [largest])]
    found = [what for one in loads for what in faults(one)]
    if largest is None and not options.quick:
        found.append(f"{SELDOM:,} workers were not measured")
    return _said([*found, *_decide(options.quick)], "nothing was lost, and the budget is kept")


def _decide(quick: bool) -> list[str]:
    """Measure the third series, print it, and return what of it breaks the budget."""
    fleets, queues = (decisions.QUICK_FLEETS, decisions.QUICK_QUEUES) if quick else (decisions.FLEETS, decisions.QUEUES)
    _tell("Decisions alone: capacity")
    points = asyncio.run(decisions.measure(fleets, queues, _tell))
    for line in decisions.slopes(points):
        _tell(line)
    return decisions.faults(points)


def _said(found: list[str], well: str) -> int:
    _tell("\n".join(found) or well)
    return int(bool(found))


def _tell(line: str) -> None:
    # Standard output is the document's, where one is asked for.
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
