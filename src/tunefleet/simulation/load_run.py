"""One load: start workers, submit tasks, wait, and compare with the server's task list."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tunefleet.client import AsyncClient
from tunefleet.errors import ConflictError, MachineError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.api import SubmitRequest, TaskView
from tunefleet.simulation import load_report
from tunefleet.simulation.load_report import Report
from tunefleet.simulation.plan import LIGHT, Plan, ServerConnection, capabilities, worker_id
from tunefleet.simulation.processes import Crowds
from tunefleet.simulation.sampling import Machine, Sampler

Ended = Literal["done", "time", "interrupted", "stalled"]
_POLL_S: Final = 0.05
# Concurrent submit requests.
_SUBMITS: Final = 4
# Without progress for this time, the server's list decides whether all tasks have ended.
_SETTLED_S: Final = 3.0
# Without progress for this time plus the run time of a task, the load counts as stalled.
_STALL_S: Final = 60.0
# Maximum tasks per workflow.
BATCH: Final = 200
# Workers that are inspected for their GPU sizes.
_INSPECTED: Final = 200
_MODEL: Final = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
_DATA: Final = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"}


class Progress(NamedTuple):
    """Progress of a load."""

    submitted: int
    offered: int
    ended: int
    tasks: int


@dataclass(slots=True)
class Submits:
    """Submitted workflows: times of request and reply, and their tasks."""

    called_at: dict[str, float] = field(default_factory=dict)
    answered_at: dict[str, float] = field(default_factory=dict)
    task_ids: dict[str, str] = field(default_factory=dict)


class Load:
    """Runs one load.

    Args:
        processes: Number of worker processes; automatic if None.
    """

    def __init__(
        self, plan: Plan, connection: ServerConnection, *, admin_key: str, machine: Machine, renewals: bool = True,
        tidy: bool = False, processes: int | None = None, on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._plan, self._connection, self._machine = plan, connection, machine
        self._renewals, self._tidy, self._on_progress = renewals, tidy, on_progress
        self._client = AsyncClient(connection.url, admin_key)
        self._crowds = Crowds(plan, connection, processes)
        self._submits = Submits()
        self._interrupted = asyncio.Event()
        self._workers_started = False

    def interrupt(self) -> None:
        """Stop early; the report covers what was measured."""
        self._interrupted.set()

    async def run(self) -> Report:
        """Run the load.

        Raises:
            TunefleetError: If the server or the workers fail.
        """
        try:
            async with self._client, self._crowds:
                sampler = Sampler(self._machine, lambda: self._crowds.tick.ended)
                try:
                    return await self._run(sampler)
                finally:
                    if self._tidy:
                        await self._remove_all()
        finally:
            await self._client.close()

    async def _run(self, sampler: Sampler) -> Report:
        if self._plan.fill_first:
            await self._submit()
        self._workers_started = True
        await self._start_workers()
        sampler.start()
        began = time.monotonic()
        submitting = None if self._plan.fill_first else asyncio.create_task(self._submit())
        ended = await self._wait(submitting, began)
        took_s = time.monotonic() - began
        if submitting is not None and not submitting.done():
            submitting.cancel()
            await asyncio.wait({submitting})
        await sampler.stop()
        cost, redis = sampler.server(self._crowds.tick.ended), sampler.redis()
        ends = await self._crowds.stop()
        # Listed after the workers have left: a task finished during the listing would seem lost.
        tasks = await self._listed()
        found = load_report.LoadResult(
            self._plan, self._connection.link, self._renewals, ended, took_s, tasks, ends,
            self._submits.called_at, self._submits.answered_at,
            await self._lost_attempts(load_report.tasks_to_inspect(tasks, ends)),
        )  # fmt: skip
        return load_report.report_of(found).model_copy(
            update={"server": cost, "redis": redis, "samples": tuple(sampler.samples)}
        )

    async def _lost_attempts(self, task_ids: list[str]) -> dict[tuple[str, int], float]:
        """Return when attempts of these tasks were lost with their workers, on the monotonic clock."""
        ahead_s, found = time.time() - time.monotonic(), dict[tuple[str, int], float]()
        for id_ in task_ids:
            for each in (await self._client.tasks.get(id_)).attempt_list:
                if each.reason == TaskReason.WORKER_LOST and each.finished_at is not None:
                    found[id_, each.number] = each.finished_at.timestamp() - ahead_s
        return found

    async def _start_workers(self) -> None:
        try:
            async with asyncio.timeout(self._plan.register_within_s):
                await self._crowds.start()
        except TimeoutError:
            raise MachineError(
                f"{self._plan.workers:,} workers had not registered after {self._plan.register_within_s:.0f} s.",
                hint="Use fewer workers or an idle machine: server and simulated workers share its cores.",
            ) from None

    # ---- submitting ----

    async def _submit(self) -> None:
        began, due = time.monotonic(), 0
        semaphore, rate = asyncio.Semaphore(_SUBMITS), self._plan.rate_per_s

        async def one(document: str) -> None:
            async with semaphore:
                await self._create(document)

        async with asyncio.TaskGroup() as group:
            for count, document in documents(self._plan):
                if rate is not None:
                    await asyncio.sleep(max(0.0, began + due / rate - time.monotonic()))
                due += count
                await asyncio.sleep(0)
                group.create_task(one(document))
                self._report_progress()

    async def _create(self, document: str) -> None:
        called_at = time.monotonic()
        flow = await self._client.workflows.create(SubmitRequest(document=document), uuid.uuid4().hex)
        self._submits.called_at[flow.id] = called_at
        self._submits.answered_at[flow.id] = time.monotonic()
        self._submits.task_ids.update((task.id, flow.id) for task in flow.tasks)
        self._report_progress()

    # ---- waiting ----

    async def _wait(self, submitting: asyncio.Task[None] | None, began: float) -> Ended:
        idle_since, before = time.monotonic(), self._progress()
        check_after_s = _SETTLED_S
        patience_s = _STALL_S + 1.2 * self._plan.task_s
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), _POLL_S)
            self._crowds.check()
            # Raises the error of a failed submission.
            if submitting is not None and submitting.done():
                submitting.result()
            now = self._report_progress()
            if now != before:
                before, idle_since, check_after_s = now, time.monotonic(), _SETTLED_S
            if self._interrupted.is_set():
                return "interrupted"
            if now.ended >= self._plan.tasks:
                return "done"
            if self._plan.for_s is not None and time.monotonic() - began > self._plan.for_s:
                return "time"
            idle_s = time.monotonic() - idle_since
            # A worker that must drop an attempt that it just finished gets no confirmation: progress misses it.
            if idle_s > check_after_s and now.submitted == self._plan.tasks:
                check_after_s = idle_s + _SETTLED_S
                if await self._all_final():
                    return "done"
            if idle_s > patience_s:
                return "stalled"

    def _progress(self) -> Progress:
        tick = self._crowds.tick
        return Progress(len(self._submits.task_ids), tick.offers, tick.ended, self._plan.tasks)

    def _report_progress(self) -> Progress:
        now = self._progress()
        self._on_progress(now)
        return now

    # ---- what the server says, and what is left there ----

    async def _listed(self) -> list[TaskView]:
        found: list[TaskView] = []
        for id_ in self._submits.called_at:
            found += (await self._client.workflows.get(id_)).tasks
        return found

    async def _all_final(self) -> bool:
        final = {"completed", "failed", "cancelled", "skipped"}
        return all(task.status in final for task in await self._listed())

    async def _remove_all(self) -> None:
        """Remove all workflows and workers of this run; a submit without a reply is found by its name."""
        ids = dict.fromkeys(self._submits.called_at)
        async for flow in self._client.workflows.iterate(name=self._plan.run_id):
            if flow.name.startswith(self._plan.run_id):
                ids[flow.id] = None
        for id_ in ids:
            with contextlib.suppress(ConflictError):  # already ended
                await self._client.workflows.cancel(id_)
        await self._crowds.leave()
        for number in range(self._plan.workers if self._workers_started else 0):
            with contextlib.suppress(NotFoundError):  # never registered
                await self._client.workers.remove(worker_id(self._plan, number))
        for id_ in ids:
            await self._client.workflows.remove(id_)


def documents(plan: Plan) -> Iterator[tuple[int, str]]:
    """Yield the workflow files of a plan: number of tasks and text."""
    # At a limited rate five requests per second, so that the submission is smooth.
    size = BATCH if plan.rate_per_s is None else max(1, min(BATCH, round(plan.rate_per_s / 5)))
    rng, sizes = random.Random(plan.seed), _gpu_sizes(plan)
    for start in range(0, plan.tasks, size):
        numbers = range(start, min(plan.tasks, start + size))
        nodes = [{"name": f"t{number:06}", "spec": _spec(plan, number, rng, sizes)} for number in numbers]
        shared = {"resources": {"tags": [plan.tag]}}
        document = {
            "apiVersion": "tunefleet/v1",
            "kind": "Workflow",
            "metadata": {"name": f"{plan.run_id}-{start:06}"},
            "spec": {**shared, "graph": {"nodes": nodes}},
        }
        yield len(nodes), json.dumps(document)


def _spec(plan: Plan, number: int, rng: random.Random, sizes: list[int]) -> dict[str, Any]:
    kind = plan.kinds[number % len(plan.kinds)]
    if kind == LIGHT:
        return {"taskType": kind, "data": {"type": "list", "items": ["a"]}}
    spec: dict[str, Any] = {"taskType": kind, "model": _MODEL, "data": _DATA, "training": {"max_steps": 10}}
    if sizes:
        gpu = {"count": 1, "memory": f"{max(1, rng.choice(sizes) // 2)}Gi"}
        spec["resources"] = {"hardware": {"gpu": gpu}}
    return spec


def _gpu_sizes(plan: Plan) -> list[int]:
    """Return the GPU memory sizes of the fleet, so that every task can be placed."""
    found = {
        gpu.memory_total_bytes >> 30
        for number in range(min(plan.workers, _INSPECTED))
        for gpu in capabilities(plan, number).gpus
    }
    return sorted(found)
