"""Nodes are asked for when their task may run, and no more of them than are of use."""

from __future__ import annotations

from tests.unit.orchestrator.clusters.fake import ON_SLURM, TWO, Field, on_slurm
from tests.unit.orchestrator.lab import FakeWorker
from tunefleet.orchestrator.access import api_keys, projects
from tunefleet.orchestrator.scheduling import autoscaling, scheduler
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workers import workers
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import KeyCreate, SubmitRequest
from tunefleet.schemas.projects import ProjectChange, ProjectCreate


async def test_most_jobs_at_a_time(field: Field) -> None:
    field.lab.core.settings = field.lab.core.settings.model_copy(update={"nodes_jobs": 2})
    ids = [await field.lab.submit(ON_SLURM) for _ in range(3)]
    await field.look()
    await field.look()
    assert field.slurm.submits == [f"tunefleet-{task_id}-1" for task_id in ids[:2]]
    assert await field.why(ids[2]) == (
        "waiting: nodes of slurm are requested when one of the 2 open jobs has ended (TUNEFLEET_NODES_JOBS is 2)."
    )
    await tasks.cancel(field.lab.core, field.lab.admin, ids[1])
    await field.look()
    field.slurm.now("ended", "cancelled")
    await field.look()
    assert await field.why(ids[2]) == "waiting: nodes of slurm are requested soon."
    await field.look()
    assert field.slurm.newest == f"tunefleet-{ids[2]}-1"


async def test_a_quota_holds_the_asking_back_and_nobody_elses(field: Field) -> None:
    field.lab.core.settings = field.lab.core.settings.model_copy(update={"nodes_jobs": 2})
    await projects.create(field.lab.core, field.lab.admin, ProjectCreate(name="red", max_running=1))
    made = await api_keys.create(field.lab.core, field.lab.admin, KeyCreate(name="r", role="member", project="red"))
    red = await api_keys.authenticate(field.lab.core, made.secret)
    mine = [
        (await workflows.submit(field.lab.core, red, SubmitRequest(document=ON_SLURM))).tasks[0].id for _ in range(4)
    ]
    other = await field.lab.submit(ON_SLURM)
    await field.look()
    await field.look()
    # What waits for its nodes counts: a second job of the project would only stand idle.
    assert field.slurm.submits == [f"tunefleet-{mine[0]}-1", f"tunefleet-{other}-1"]
    await projects.change(field.lab.core, field.lab.admin, "red", ProjectChange(max_running=0))
    await tasks.cancel(field.lab.core, field.lab.admin, other)
    await field.look()
    assert "its quota is 0" in ((await tasks.get(field.lab.core, red, mine[1])).why or "")


async def test_what_a_quota_keeps_from_its_nodes_is_not_failed_for_it(field: Field) -> None:
    await projects.create(field.lab.core, field.lab.admin, ProjectCreate(name="red", max_running=1))
    made = await api_keys.create(field.lab.core, field.lab.admin, KeyCreate(name="r", role="member", project="red"))
    red = await api_keys.authenticate(field.lab.core, made.secret)
    await workflows.submit(field.lab.core, red, SubmitRequest(document=ON_SLURM))
    await field.look()
    (worker,) = await field.nodes()
    await projects.change(field.lab.core, field.lab.admin, "red", ProjectChange(max_running=0))
    for _ in range(41):
        await worker.exchange()
        await field.look(after_s=15.0)
    assert field.slurm.cancels == [field.slurm.newest]
    field.slurm.now("ended", "cancelled")
    await field.look()
    assert [row.barren for row in await field.rows()] == [0]


async def test_a_task_that_waits_for_another_try_gets_no_nodes_before(field: Field) -> None:
    task_id = await field.asked(on_slurm("retry: {max_attempts: 2, backoff_s: 100}"))
    (worker,) = await field.nodes()
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "crashed", error="no")
    field.slurm.now("ended", "failed (NonZeroExitCode)")
    await field.look()
    await field.look()
    assert (await field.lab.task(task_id)).status == "queued"
    assert len(field.slurm.submits) == 1
    await field.look(after_s=120)
    assert len(field.slurm.submits) == 2


async def test_nodes_of_a_cluster_do_not_rest_and_stand_in_for_nobody_who_does(field: Field) -> None:
    plain = await field.lab.online("plain")
    await field.asked(on_slurm('resources: {nodes: "2:3"}'))
    three = await field.nodes(dict(TWO), dict(TWO), {"torch_version": "2.14"})
    await scheduler.run_once(field.lab.core)
    field.lab.clock.advance(2.0)
    for worker in three:
        for offer in (await worker.exchange()).offers:
            await worker.accept(offer.token)
    for _ in range(20):
        field.lab.clock.advance(10.0)
        for each in (plain, *three):
            await each.exchange()
        await autoscaling.run_once(field.lab.core)
    listed = (await workers.list_(field.lab.core, field.lab.admin)).items
    assert {each.id for each in listed if each.elastic_disabled} == set()


async def test_an_elastic_task_begins_with_all_workers_that_come_one_after_the_other(field: Field) -> None:
    task_id = await field.asked(on_slurm('resources: {nodes: "2:4"}'))
    crew = await field.nodes(dict(TWO), dict(TWO))
    assert await offered(field, crew) == 0, "two more may come"
    field.lab.clock.advance(15.0)
    crew.append(await field.worker(2, **TWO))
    field.lab.clock.advance(15.0)
    assert await offered(field, crew) == 0, "another has come a moment ago"
    assert await field.why(task_id) == "waiting: job 101 of slurm has its nodes; their workers are starting."
    crew.append(await field.worker(3, **TWO))
    assert await offered(field, crew) == 4


async def test_an_elastic_task_does_not_wait_long_for_nodes_that_it_did_not_get(field: Field) -> None:
    await field.asked(on_slurm('resources: {nodes: "2:4"}'))
    crew = await field.nodes(dict(TWO), dict(TWO))
    field.lab.clock.advance(21.0)
    assert await offered(field, crew) == 2


async def test_an_elastic_task_begins_in_time_however_many_come_one_by_one(field: Field) -> None:
    field.lab.core.settings = field.lab.core.settings.model_copy(update={"nodes_patience_s": 60.0})
    await field.asked(on_slurm('resources: {nodes: "2:64"}'))
    crew = await field.nodes(dict(TWO), dict(TWO))
    for number in (2, 3):
        field.lab.clock.advance(12.0)
        crew.append(await field.worker(number, **TWO))
        assert await offered(field, crew) == 0
    field.lab.clock.advance(6.0)
    crew.append(await field.worker(4, **TWO))
    assert await offered(field, crew) == 5, "half of the patience is over"


async def test_the_nodes_of_a_requeued_job_are_waited_for_anew(field: Field) -> None:
    await field.asked(on_slurm('resources: {nodes: "2:4"}'))
    crew = await field.nodes(dict(TWO), dict(TWO))
    field.slurm.now("waiting", "pending (BeginTime)")
    await field.look()
    field.lab.clock.advance(21.0)
    assert await offered(field, crew) == 0, "no look has seen it run again"
    field.slurm.now("running")
    await field.look()
    field.lab.clock.advance(15.0)
    assert await offered(field, crew) == 0, "two more may come"
    field.lab.clock.advance(6.0)
    assert await offered(field, crew) == 2


async def offered(field: Field, crew: list[FakeWorker]) -> int:
    """Let all answer and the server place, and return how many of them are offered their part."""
    for worker in crew:
        await worker.exchange()
    await scheduler.run_once(field.lab.core)
    field.lab.clock.advance(2.0)
    return sum([len((await worker.exchange()).offers) for worker in crew])


async def test_a_secret_that_a_worker_keeps_for_the_project_is_there(field: Field) -> None:
    await projects.create(field.lab.core, field.lab.admin, ProjectCreate(name="red"))
    made = await api_keys.create(field.lab.core, field.lab.admin, KeyCreate(name="r", role="member", project="red"))
    red = await api_keys.authenticate(field.lab.core, made.secret)
    document = ON_SLURM.replace("[one, two]", '["${secret:HF_TOKEN}"]')
    task_id = (await workflows.submit(field.lab.core, red, SubmitRequest(document=document))).tasks[0].id
    await field.look()
    (worker,) = await field.nodes({"secrets": ("HF_TOKEN@red",)})
    await field.look()
    assert (await worker.start()).task_id == task_id
