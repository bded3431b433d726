"""Simulated workers on a real server: they keep the protocol, obey, and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.client import Client
from tunefleet.errors import TunefleetError
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.schemas.api import SubmitRequest
from tunefleet.settings import ServerSettings, load
from tunefleet.simulation.held_attempt import Trace
from tunefleet.simulation.load_run import Load, Progress, documents
from tunefleet.simulation.plan import Plan, ServerConnection
from tunefleet.simulation.processes import Crowds
from tunefleet.simulation.sampling import Machine
from tunefleet.simulation.simulated_worker import SimulatedWorker
from tunefleet.transport.http import AsyncHttpLink, AsyncJournals, Traffic

pytestmark = pytest.mark.proof

ECHO = """apiVersion: tunefleet/v1
metadata: {name: foreign}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


@dataclass
class Site:
    url: str
    admin_key: str
    worker_key: str
    client: Client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data: Path = tmp_path_factory.mktemp("data")
    core = open_context(load(ServerSettings, data=data, synchronous="NORMAL", lost_after_s=60, hub_offline=True))
    bound = launch.bind("127.0.0.1", 0)
    server = launch.make(create_app(core))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    admin, worker = ((data / "keys" / f"{role}.key").read_text().strip() for role in ("admin", "worker"))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with Client(url, admin) as client:
        yield Site(url, admin, worker, client)
    server.should_exit = True
    thread.join(15)
    core.close()


@dataclass
class Notes:
    """A ledger."""

    offers: int = 0
    exchanges: int = 0
    traces: list[Trace] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    foreigners: list[str] = field(default_factory=list)
    fatal: list[TunefleetError] = field(default_factory=list)

    def exchanged(self, took_s: float, *, has_messages: bool, renewed: bool) -> None:
        self.exchanges += 1

    def offered(self) -> None:
        self.offers += 1

    def ended(self, trace: Trace) -> None:
        self.traces.append(trace)

    def fault(self, error: TunefleetError) -> None:
        self.faults.append(str(error))

    def foreign(self, task_id: str) -> None:
        self.foreigners.append(task_id)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(90):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def submitted(site: Site, plan: Plan) -> list[str]:
    return [
        task.id
        for number, (_, document) in enumerate(documents(plan))
        for task in site.client.workflows.create(SubmitRequest(document=document), f"{plan.run_id}-{number}").tasks
    ]


async def working(site: Site, plan: Plan, during: Callable[[SimulatedWorker], Awaitable[None]]) -> Notes:
    """Have one worker while something happens."""
    notes, traffic = Notes(), Traffic()
    journals = AsyncJournals(site.url, traffic)
    link = AsyncHttpLink(site.url, site.worker_key, traffic=traffic)
    worker = SimulatedWorker(plan, 0, link, notes, ship=journals.ship, on_fatal=notes.fatal.append)
    await worker.start()
    await during(worker)
    await worker.leave()
    await journals.close()
    assert traffic.up_bytes
    assert traffic.down_bytes
    assert notes.fatal == []
    return notes


async def test_a_task_is_accepted_run_measured_and_finished_and_the_worker_leaves(site: Site) -> None:
    plan = Plan(workers=1, tasks=2, task_s=0.2, metrics_per_s=50, kinds=("lora_sft",))
    ids = await asyncio.to_thread(submitted, site, plan)

    async def during(worker: SimulatedWorker) -> None:
        await until(lambda: all(site.client.tasks.get(id_).status == "completed" for id_ in ids))
        assert site.client.workers.get(worker.id).status == "online"

    notes = await working(site, plan, during)
    assert notes.offers == 2
    assert {trace.outcome for trace in notes.traces} == {"completed"}
    assert all(trace.accepted_at and trace.finished_at for trace in notes.traces)
    assert site.client.workers.get(f"{plan.run_id}-00000").status == "offline"
    assert len(site.client.tasks.metrics(ids[0]).points) >= 5


async def test_a_running_task_obeys_cancel_and_pause(site: Site) -> None:
    plan = Plan(workers=1, tasks=2, task_s=600, kinds=("lora_sft",), slots=2)
    ids = await asyncio.to_thread(submitted, site, plan)

    async def during(worker: SimulatedWorker) -> None:
        await until(lambda: all(site.client.tasks.get(id_).status == "running" for id_ in ids))
        await asyncio.to_thread(site.client.tasks.cancel, ids[0])
        await asyncio.to_thread(site.client.tasks.pause, ids[1])
        await until(lambda: site.client.tasks.get(ids[0]).status == "cancelled")
        await until(lambda: site.client.tasks.get(ids[1]).status == "paused")

    notes = await working(site, plan, during)
    assert {trace.outcome for trace in notes.traces} == {"cancelled", "paused"}
    site.client.tasks.cancel(ids[1])


async def test_a_worker_that_is_drained_leaves_by_itself(site: Site) -> None:
    plan = Plan(workers=1, tasks=1)

    async def during(worker: SimulatedWorker) -> None:
        await asyncio.to_thread(site.client.workers.drain, worker.id)
        await until(lambda: site.client.workers.get(worker.id).status == "offline")

    await working(site, plan, during)


async def test_a_load_loses_nothing_touches_nobody_elses_task_and_leaves_nothing(site: Site) -> None:
    foreign = site.client.submit(ECHO).task_id
    plan = Plan(workers=5, tasks=40, task_s=0.05, kinds=("echo", "lora_sft"), slots=2)
    told: list[Progress] = []
    one = Load(
        plan, ServerConnection(url=site.url, key=site.admin_key), admin_key=site.admin_key, machine=Machine(),
        tidy=True, on_progress=told.append,
    )  # fmt: skip
    report = await one.run()
    assert (report.ended, report.completed, report.lost, report.doubled) == ("done", 40, 0, 0), report.warnings
    assert report.whole
    assert report.submit_to_finish.count == 40
    assert report.server.rss_max_bytes is None  # nobody said where it runs
    assert told[-1] == (40, 40, 40, 40)
    assert site.client.tasks.get(foreign).status == "queued"
    assert not [worker for worker in site.client.workers.list().items if worker.id.startswith(plan.run_id)]
    assert not [flow for flow in site.client.workflows.list().items if flow.name.startswith(plan.run_id)]
    site.client.tasks.cancel(foreign)


async def test_a_load_that_is_interrupted_tells_what_it_measured_and_takes_its_tasks_away(site: Site) -> None:
    plan = Plan(workers=2, tasks=10, task_s=600)
    connection = ServerConnection(url=site.url, key=site.admin_key)

    def interrupt_when_offered(now: Progress) -> None:
        if now.offered:
            one.interrupt()

    one = Load(
        plan, connection, admin_key=site.admin_key, machine=Machine(), tidy=True, on_progress=interrupt_when_offered
    )  # fmt: skip
    report = await one.run()
    assert (report.ended, report.completed, report.lost) == ("interrupted", 0, 0)
    assert report.left == report.submitted > 0
    assert not [flow for flow in site.client.workflows.list().items if flow.name.startswith(plan.run_id)]
    assert not [worker for worker in site.client.workers.list().items if worker.id.startswith(plan.run_id)]


async def test_workers_that_the_server_refuses_end_the_load_in_its_words(site: Site) -> None:
    plan = Plan(workers=2, tasks=2)
    one = Load(
        plan, ServerConnection(url=site.url, key="tf_no"), admin_key=site.admin_key, machine=Machine(), tidy=True
    )
    with pytest.raises(TunefleetError, match="key"):
        await one.run()
    assert not [flow for flow in site.client.workflows.list().items if flow.name.startswith(plan.run_id)]


async def test_a_process_whose_last_word_cannot_be_read_is_no_good_end(monkeypatch: pytest.MonkeyPatch) -> None:
    crowds = Crowds(Plan(workers=1, tasks=1), ServerConnection(url="http://127.0.0.1:9", key="k"))
    monkeypatch.setattr("tunefleet.simulation.processes.sys.executable", "/bin/echo")  # says its arguments, and ends
    async with crowds:
        with pytest.raises(TunefleetError, match="cannot be parsed"):
            await crowds.start()
