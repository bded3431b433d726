"""The queue as placement reads it: in pieces, no further than it gets, and decided as if it had been read whole."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeWorker, Lab
from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.scheduling import queue as task_queue
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.placement import Candidate, plan
from tunefleet.schemas.worker_link import Gpu

GIB = 1 << 30
HARDWARE = (
    "{gpu: {count: 1}}",
    "{gpu: {count: 2}}",
    "{gpu: {count: 4}}",
    "{gpu: {count: 1, type: '4090'}}",
    "{memory: 6Gi}",
    "{cpu: 3}",
    "{gpu: {count: 9}}",
)


def asking(hardware: str, priority: int = 0) -> str:
    return TRAIN + f"  resources: {{hardware: {hardware}}}\n  priority: {priority}\n"


async def box(lab: Lab, id_: str, *names: str, slots: int = 4) -> FakeWorker:
    worker = lab.worker(id_, want={"job": slots, "light": 2})
    gpus = tuple(
        Gpu(index=index, name=name, uuid=f"{id_}-{index}", memory_total_bytes=24 * GIB)
        for index, name in enumerate(names)
    )
    await worker.register(gpus=gpus, slots={"job": slots, "light": 2})
    await worker.exchange()
    return worker


def all_waiting(connection: Connection, now: float) -> list[TaskRow]:
    lines = queue.lines(connection)
    return [row for key, project in lines for row in queue.first(connection, key, project, now=now, count=1000)]


async def expected(lab: Lab) -> dict[str, tuple[str, str]]:
    """Return where tasks go if all that wait and all workers are looked at, each task at its turn."""
    here = cluster_state.fleet_snapshot(lab.core)

    def operation(connection: Connection) -> dict[str, tuple[str, str]]:
        rows = all_waiting(connection, here.now)
        needs = cluster_state.needs(connection, {row.requirement_key for row in rows})
        candidates = [Candidate(row.id, needs[row.requirement_key], row.rank) for row in rows]
        found = plan(candidates, cluster_state.states(connection, here), scheduler.policy_of(lab.core.settings))
        return {each.task_id: (each.worker_id, ",".join(each.gpus)) for each in found.assignments}

    return await lab.core.read(operation)


async def opened(lab: Lab) -> dict[str, tuple[str, str]]:
    rows = await lab.core.read(attempts.all_open)
    return {row.task_id: (row.worker_id, row.gpus or "") for row in rows}


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_read_in_pieces_is_decided_as_if_it_had_been_read_whole(
    seed: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queue, "_PIECE", 2)
    chance = random.Random(seed)
    for _ in range(40):
        kind = chance.random()
        await lab.submit(ECHO if kind < 0.1 else asking(chance.choice(HARDWARE), chance.randrange(3)))
        lab.clock.advance(chance.random() * 900)
    for number in range(5):
        cards = ["RTX 4090", "A10"] if number % 2 else ["RTX 4090"] * 4
        await box(lab, f"w{number}", *cards, slots=chance.randint(2, 4))
        if number % 2:
            continue  # the next pass finds two new workers, and what the others have left
        wanted, before = await expected(lab), await opened(lab)
        assert wanted
        await scheduler.run_once(lab.core)
        after = await opened(lab)
        assert {task_id: place for task_id, place in after.items() if task_id not in before} == wanted


async def test_one_of_those_whose_room_runs_out_within_a_pass_is_gathered_for(lab: Lab) -> None:
    first, second = await box(lab, "w1", "A10", "A10"), await box(lab, "w2", "A10", "A10")
    await lab.submit(asking("{gpu: {count: 1}}"))
    await scheduler.run_once(lab.core)
    busy = next(iter((await opened(lab)).values()))[0]
    wide = [await lab.submit(asking("{gpu: {count: 2}}")) for _ in range(3)]
    lab.clock.advance(1.0)
    narrow = await lab.submit(asking("{gpu: {count: 1}}"))
    await scheduler.run_once(lab.core)
    placed = await opened(lab)
    assert wide[0] in placed
    assert narrow not in placed, "the free device of the other worker is kept for the second wide task"
    assert lab.core.state(Fleet).reserved == {busy: wide[1]}
    assert {first.id, second.id} == {busy, placed[wide[0]][0]}


@pytest.mark.parametrize("document", [ECHO, asking("{gpu: {count: 2}}")], ids=["light", "wide"])
async def test_no_more_is_read_than_there_is_room_for(document: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "_PIECE", 4)
    read: list[int] = []
    first = queue.first

    def counted(*args: Any, **more: Any) -> list[TaskRow]:
        rows = first(*args, **more)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(queue, "first", counted)
    for _ in range(40):
        await lab.submit(document)
    await box(lab, "w1", "A10", "A10", "A10", "A10")
    assert await scheduler.run_once(lab.core) == 2
    assert sum(read) == 4


async def test_a_pass_that_leaves_tasks_unread_asks_for_the_next_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "MAX_CANDIDATES", 3)
    for _ in range(9):
        await lab.submit()
    for number in range(4):
        await box(lab, f"w{number}")
    counts, seen = [], -1
    while seen != (now := lab.core.signals.version("placement")):  # as the server's loop does
        seen = now
        counts.append(await scheduler.run_once(lab.core))
    assert sum(counts) == 8
    assert max(counts) == 3


async def test_the_collector_is_back_after_a_pass_that_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.submit()
    await box(lab, "w1")
    seen: list[bool] = []

    def fail(*_: Any, **__: Any) -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("The pass fails.")

    monkeypatch.setattr(cluster_state, "states", fail)
    with pytest.raises(RuntimeError, match="The pass fails"):
        await scheduler.run_once(lab.core)
    assert seen == [False]
    assert gc.isenabled()
