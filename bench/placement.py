"""How fast tasks are placed when many wait for many workers, and whether a decision costs more in a longer queue.

    python bench/placement.py            # about two minutes
    python bench/placement.py --quick    # a fifth of the sizes

Two measurements, each at several lengths of the queue:

1. The pure plan: 5,000 simulated workers, all candidates at once; a decision is an assignment or "waits".
2. Through the store, with a server's default settings (SQLite, synced): tasks are rows, workers are registered and have
   told their load; a pass reads, decides, writes attempts and events, and commits. A pass that asks for another one is
   followed by it, as in the server, and both count. First the whole fleet is filled, then again and again a part of it
   becomes free and is filled anew; meanwhile workers tell new loads. A decision is an opened attempt. At the end: what
   a pass costs after a single end, however little there is to do.

Budget: 1,000 decisions a second with 100,000 queued tasks and 5,000 workers, and a flat time per decision: in a queue
that is four times as long a decision may take `FLAT` times as long, of the processor, and not four times. Wall-clock
time counts for the decisions a second; the time that the process had the processor is named beside it, since a busy
machine doubles the first and not the second. There is no peer for this in one process; the exchanges in which workers
fetch offers and tell of ends are not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from _report import BUDGETS, Figure, Line, Report, kept_if

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.repositories import workflows as workflow_rows
from tunefleet.db.repositories.task_transitions import Move, New, enter, switch
from tunefleet.db.rows import WorkerRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet, Presence
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import spec_columns
from tunefleet.placement import Candidate, Device, Requirement, WorkerState, plan
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, Gpu, GpuLoad, Load
from tunefleet.settings import ServerSettings

BUDGET: int = 1000
FLAT: float = 1.5
"""What scale.py allows a queue of ten times the length, 2.0, is this for four times: a growth with the power of 0.3."""
MOST_ENDS: int = 1000
"""How many tasks end between two passes, at most."""
HEARD: float = 0.01
"""The part of the workers that tells a new load between two passes: all do so every 30 s, and a pass takes about
0.3 s."""
CARDS = (
    ("NVIDIA A100-SXM4-80GB", 80),
    ("NVIDIA H100 80GB HBM3", 80),
    ("NVIDIA GeForce RTX 4090", 24),
    ("NVIDIA A10", 24),
)
KINDS = ("lora_sft", "sft", "dpo", "echo")
_JOB = partial(Requirement, kind="lora_sft", slot_class="job")
NEEDS = (
    _JOB(gpu_count=1, gpu_optional=True),
    _JOB(gpu_count=1, gpu_memory_bytes=20 << 30),
    _JOB(gpu_count=1, gpu_type="a100", memory_bytes=32 << 30),
    _JOB(gpu_count=1, gpu_memory_bytes=46 << 30, model="org/large"),
    _JOB(gpu_count=2, memory_bytes=64 << 30),
    _JOB(gpu_count=4, gpu_type="h100"),
    _JOB(gpu_count=1, gpu_all=True),
    _JOB(gpu_count=16),  # nobody has so many
    _JOB(memory_bytes=16 << 30, cpu=8),
    _JOB(gpu_count=1, tags=("lab",)),
    Requirement(kind="sft", slot_class="job", gpu_count=1, model="org/small"),
    Requirement(kind="echo", slot_class="light"),
)


def capabilities(number: int) -> Capabilities:
    """Describe one of the simulated workers: from none to eight cards of one of four types."""
    name, gib = CARDS[number % len(CARDS)]
    count = (0, 1, 1, 2, 4, 8)[number // 7 % 6]
    return Capabilities(
        version="0", hostname=f"host-{number}", cpu_count=16 + 16 * count,
        executors=tuple(ExecutorOffer(kind=kind, slot_class="light" if kind == "echo" else "job") for kind in KINDS),
        slots={"job": max(1, count), "light": 4},
        memory_total_bytes=(64 << 30) * max(1, count), memory_free_bytes=64 << 30, disk_free_bytes=1 << 40,
        gpus=tuple(
            Gpu(index=index, name=name, uuid=f"GPU-{number}-{index}", memory_total_bytes=gib << 30)
            for index in range(count)
        ),
        tags=("lab",) if number % 9 == 0 else (), cached_models=("org/large",) if number % 5 == 0 else (),
        cost_per_hour=1.0 + number % 3,
    )  # fmt: skip


# ---- the pure plan ---------------------------------------------------------------------------------------------------


def states(count: int) -> list[WorkerState]:
    """Return idle workers as the plan sees them."""
    found = []
    for number in range(count):
        has = capabilities(number)
        slots = {str(name): slots for name, slots in has.slots.items()}
        found.append(
            WorkerState(
                id=f"w{number:05}", present=True, executors=dict.fromkeys(KINDS), slots=slots, free=slots,
                cpu=has.cpu_count, memory_bytes=has.memory_total_bytes,
                gpus=tuple(Device(gpu.name, gpu.memory_total_bytes, gpu.uuid) for gpu in has.gpus),
                tags=frozenset(has.tags), cached=frozenset(has.cached_models), cost_per_hour=has.cost_per_hour,
            )
        )  # fmt: skip
    return found


def pure(lengths: list[int], fleet: list[WorkerState]) -> list[tuple[float, float]]:
    """Plan queues of several lengths; return microseconds a decision, on the wall and of the processor."""
    costs = []
    for length in lengths:
        queue = [Candidate(f"t{n}", NEEDS[n % len(NEEDS)], float(n)) for n in range(length)]
        began = time.perf_counter(), time.process_time()
        decisions = plan(queue, fleet)
        took_s, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
        costs.append((1e6 * took_s / length, 1e6 * cpu_s / length))
        print(
            f"  {length:>7,} queued: {length / took_s:>9,.0f} decisions/s ({length / cpu_s:,.0f} per second of the "
            f"processor; {len(decisions.assignments):,} placed, {len(decisions.reserved)} workers gather)"
        )
    return costs


# ---- through the store -----------------------------------------------------------------------------------------------


def fill_fleet(core: ServerContext, count: int) -> None:
    """Let so many workers be registered and present, each with a load that it has told."""

    def operation(connection: Connection) -> None:
        for number in range(count):
            text = capabilities(number).model_dump_json()
            worker_rows.put(
                connection,
                WorkerRow(
                    f"w{number:05}", "default", "bench", "key", f"s{number}", "session", "online", text, 0.0, 0.0
                ),
            )

    core.db.write(operation).result()
    for number in range(count):
        slots = capabilities(number).slots
        limits = {str(name): slots_ for name, slots_ in slots.items()}
        core.state(Fleet).presences[f"w{number:05}"] = Presence("session", limits=limits, load=_load(number, 0))


def _load(number: int, times: int) -> Load:
    """Return what a worker tells of itself: nobody but our own tasks uses it, and figures differ from word to word."""
    has = capabilities(number)
    gpus = [GpuLoad(uuid=gpu.uuid, memory_free_bytes=gpu.memory_total_bytes) for gpu in has.gpus]
    memory, disk = has.memory_total_bytes - (times << 20), (1 << 40) - (times << 20)
    return Load(memory_free_bytes=memory, disk_free_bytes=disk, gpus=tuple(gpus))


def tell_some(core: ServerContext, ended: set[str], chance: random.Random, times: int) -> None:
    """Let workers tell of ends, whereby their figures are outdated, and some tell new figures."""
    for worker_id in ended:
        core.state(Fleet).presences[worker_id].record_load(None, ended=True, at=time.time())
    there = sorted(core.state(Fleet).presences)
    for worker_id in chance.sample(there, max(1, int(HEARD * len(there)))):
        core.state(Fleet).presences[worker_id].record_load(
            _load(int(worker_id[1:]), times), ended=False, at=time.time()
        )


def _new_tasks(workflow: tuple[str, int], numbers: range, now: float) -> Iterator[New]:
    for number in numbers:
        need = NEEDS[number % len(NEEDS)]
        values = {
            "id": new_id("task"), "project": "default", "workflow_id": workflow[0], "workflow_seq": workflow[1],
            "name": f"t{number}", "kind": need.kind, "slot_class": need.slot_class, "owner": "bench",
            "parent_task_id": None, "priority": 0, "rank": spec_columns.rank(now + number * 1e-3, 0),
            "requirement_key": need.key, "max_attempts": 3, "backoff_s": 10.0, "retry_on": "", "on_lost": "replace",
            "max_runtime_s": None, "queue_deadline": None, "created_at": now,
        }  # fmt: skip
        yield New(values, "{}", "{}")


def fill_queue(core: ServerContext, count: int) -> None:
    """Put so many tasks behind those that are queued."""

    now, id_ = time.time(), new_id("wf")

    def workflow(connection: Connection) -> int:
        for need in NEEDS:
            tasks.add_requirement(connection, need.key, need.dump())
        row = {
            "id": id_, "project": "default", "name": "bench", "owner": "bench", "status": "running",
            "open_tasks": count, "failed_tasks": 0, "cancelled_tasks": 0, "created_at": now, "idempotency_key": None,
            "request_hash": None,
        }  # fmt: skip
        return workflow_rows.insert_one(connection, row, document="", warnings="[]", size_bytes=0)

    seq = core.db.write(workflow).result()
    new = _new_tasks((id_, seq), range(count), now)
    while batch := list(islice(new, 5000)):
        core.db.write(partial(enter, new=batch, now=now)).result()


def end_some(core: ServerContext, share: float, most: int, chance: random.Random) -> set[str]:
    """End a part of what runs, as its workers would say; return which."""

    def operation(connection: Connection) -> set[str]:
        now = time.time()
        open_ = attempts.all_open(connection)
        ended = chance.sample(open_, min(most, int(share * len(open_))))
        rows = tasks.by_ids(connection, [row.task_id for row in ended])
        attempts.store(connection, [row._replace(state="finished", finished_at=now) for row in ended])
        switch(connection, [Move(rows[row.task_id], TaskReason.STARTED) for row in ended], now)
        rows = tasks.by_ids(connection, list(rows))
        switch(connection, [Move(rows[row.task_id], TaskReason.FINISHED) for row in ended], now)
        return {row.worker_id for row in ended}

    return core.db.write(operation).result()


class Watch:
    """Adds up what is measured: seconds on the wall, and seconds of the processor."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    async def place(self, core: ServerContext) -> int:
        """Run a pass, and those that it asks for; return how many attempts were opened."""
        began, count, seen = (time.perf_counter(), time.process_time()), 0, -1
        while seen != core.signals.version("placement"):
            seen = core.signals.version("placement")
            count += await scheduler.run_once(core)
        self.wall_s += time.perf_counter() - began[0]
        self.cpu_s += time.process_time() - began[1]
        return count

    def rates(self, count: int) -> str:
        """Say how many were done in a second."""
        return f"{count / self.wall_s:,.0f}/s ({count / self.cpu_s:,.0f} per second of the processor)"


async def _stored(core: ServerContext, passes: int) -> tuple[float, float]:
    """Fill the fleet, then refill it; return the second's microseconds a decision, on the wall and of the processor."""
    filling, placed = Watch(), 0
    while count := await filling.place(core):
        placed += count
    chance, refilling, refilled = random.Random(7), Watch(), 0
    for times in range(passes):
        tell_some(core, end_some(core, 0.08, MOST_ENDS, chance), chance, times)
        refilled += await refilling.place(core)
    single = Watch()
    for times in range(passes):
        tell_some(core, end_some(core, 1.0, 1, chance), chance, times)
        await single.place(core)
    print(f"{placed:,} placed at {filling.rates(placed)} into an idle fleet;")
    print(
        f"{'':>17} then {refilled / passes:,.0f} a pass at {refilling.rates(refilled)}, "
        f"{1e3 * refilling.wall_s / passes:.0f} ms a pass ({1e3 * refilling.cpu_s / passes:.0f} of the processor);"
    )
    print(
        f"{'':>17} after a single end, {1e3 * single.wall_s / passes:.0f} ms a pass "
        f"({1e3 * single.cpu_s / passes:.0f} of the processor)"
    )
    return 1e6 * refilling.wall_s / refilled, 1e6 * refilling.cpu_s / refilled


async def stored(lengths: list[int], count: int, passes: int) -> list[tuple[float, float]]:
    """Place through the store; return what `_stored` does, at each length of the queue."""
    costs = []
    for length in lengths:
        with tempfile.TemporaryDirectory() as folder:
            core = open_context(ServerSettings(data=Path(folder)))
            try:
                await api_keys.ensure_first(core)
                fill_fleet(core, count)
                fill_queue(core, length)
                print(f"  {length:>7,} queued: ", end="", flush=True)
                costs.append(await _stored(core, passes))
            finally:
                core.close()
    return costs


def main() -> int:
    """Measure, print, and return 1 if the budget is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    divisor = 5 if options.quick else 1
    count, lengths = 5000 // divisor, [length // divisor for length in (25_000, 50_000, 100_000)]
    print(f"{count:,} workers, {len(NEEDS)} different needs; load average {os.getloadavg()[0]:.1f}")
    print("the pure plan:")
    pure_costs = pure(lengths, states(count))
    print("through the store:")
    stored_costs = asyncio.run(stored(lengths, count, passes=10))
    wall, cpu = zip(*stored_costs, strict=True)
    told = Report("placement", quick=options.quick)
    for what, each, of_cpu in (
        ("the pure plan", [cost for cost, _ in pure_costs], [cost for _, cost in pure_costs]),
        ("through the store", wall, cpu),
    ):
        per_s, grows = 1e6 / each[-1], of_cpu[-1] / of_cpu[0]
        told.row(
            f"decisions with {lengths[-1]:,} queued tasks and {count:,} workers, {what} (budget 1,000/s)",
            Figure.exactly(per_s, "decisions/s"), budget=BUDGETS["placement"], verdict=kept_if(per_s >= BUDGET),
        )  # fmt: skip
        told.row(
            f"a decision's time of the processor with {lengths[-1]:,} queued ÷ with {lengths[0]:,}, {what} "
            f"(flat: at most {FLAT})",
            Figure.exactly(grows, "times"), budget=BUDGETS["placement"], verdict=kept_if(grows <= FLAT),
        )  # fmt: skip
    for row in told.rows:
        print(f"{row.what}: {row.ours.median:,.2f} {row.ours.unit}, {row.verdict}")
    print(f"{1e6 / cpu[-1]:,.0f} decisions per second of the processor; load average {os.getloadavg()[0]:.1f}")
    queued = [float(length) for length in lengths]
    lines = [
        Line("the pure plan", queued, [cost for cost, _ in pure_costs]),
        Line("through the store", queued, list(wall)),
    ]
    told.plot("What a decision costs as the queue grows", "queued tasks", "µs", lines)
    told.write(options.json)
    return int(any(row.verdict == "BROKEN" for row in told.rows))


if __name__ == "__main__":
    sys.exit(main())
