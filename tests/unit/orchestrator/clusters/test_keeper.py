"""Jobs of a cluster come and go with the tasks that they are for, whatever happens in between."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.clusters.fake import ON_SLURM, TWO, FakeCluster, Field, on_slurm
from tests.unit.orchestrator.lab import TRAIN, FakeWorker
from tunefleet.errors import AuthError, ConflictError, UnreachableError
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.orchestrator.clusters import cluster_jobs
from tunefleet.orchestrator.clusters.policy import LEAVE_S, VANISHED_S
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.scheduling import reaper, scheduler
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.workflows import reruns

ON_TWO = on_slurm("resources: {nodes: 2}")
AWAY = UnreachableError("Slurm does not respond: Unable to contact slurm controller")


async def test_nodes_are_asked_for_once_and_serve_the_task(field: Field) -> None:
    task_id = await field.asked()
    await field.look()
    await field.look()
    assert field.slurm.submits == [f"tunefleet-{task_id}-1"]
    ask = field.slurm.asks[field.slurm.newest]
    assert (ask.nodes, ask.nodes_max, ask.gpu_count, dict(ask.options)) == (1, 1, 0, {})
    assert list(ask.command) == ["tunefleet", "worker", "--once", task_id, "--server", "http://server:8000"]
    assert set(ask.environment) == {
        "TUNEFLEET_WORKER_KEY", "TUNEFLEET_NODES_JOB", "TUNEFLEET_NODES_PATIENCE_S", "TUNEFLEET_NODES_DIR",
    }  # fmt: skip
    assert await field.why(task_id) == "waiting: job 101 of slurm has no nodes yet (pending (Priority))."
    (worker,) = await field.nodes()
    assert await field.why(task_id) == "waiting: job 101 of slurm has its nodes; their workers are starting."
    offer = await worker.start()
    await field.look()
    assert (await field.row()).used == 1
    await worker.finish(offer.token)
    await field.look()
    # It is sent away, and ends by itself.
    assert (await worker.exchange()).drain is True
    assert field.slurm.cancels == []
    field.slurm.now("ended", "completed")
    await field.look()
    assert await field.stands(task_id) == ("completed", "finished")
    assert [(row.state, row.barren) for row in await field.rows()] == [("ended", 0)]
    await field.look(after_s=1000)
    assert len(field.slurm.submits) == 1


async def test_what_the_document_wants_is_asked_for(field: Field) -> None:
    await field.asked(
        on_slurm('resources: {nodes: "2:4", hardware: {cpu: 8, memory: 32Gi, gpu: {count: 2, type: A100}}}').replace(
            "engine: slurm", "engine: {type: slurm, partition: gpu, exclusive: true}"
        )
    )
    ask = field.slurm.asks[field.slurm.newest]
    assert (ask.nodes, ask.nodes_max, ask.cpu, ask.memory_bytes, ask.gpu_count) == (2, 4, 8, 32 << 30, 2)
    assert ask.gpu_type == "A100"
    assert ask.options == {"partition": "gpu", "exclusive": "true"}


async def test_what_was_stored_and_never_asked_for_is_asked_for_anew(field: Field) -> None:
    task_id = await field.lab.submit(ON_SLURM)
    # The server dies between the two.
    await field.lab.core.write(lambda each: cluster_jobs.create(each, task_id, "slurm", field.lab.clock.wall))
    await field.look()
    assert (field.slurm.submits, (await field.row()).state) == ([], "submitting")
    assert await field.why(task_id) == "waiting: requesting nodes of slurm."
    await field.look(after_s=VANISHED_S)
    await field.look()
    assert field.slurm.submits == [f"tunefleet-{task_id}-2"]
    assert [(row.state, row.barren) for row in await field.rows()] == [("ended", 0), ("waiting", 0)]


async def test_what_was_taken_though_nobody_heard_of_it_is_found_by_its_name(field: Field) -> None:
    task_id = await field.lab.submit(ON_SLURM)
    order = await field.lab.core.write(lambda each: cluster_jobs.create(each, task_id, "slurm", field.lab.clock.wall))
    assert order is not None
    field.slurm.submit(order.node_request({}, (), 600.0))
    field.slurm.now("running")
    await field.look()
    assert [(row.state, row.job_id) for row in await field.rows()] == [("running", "101")]
    (worker,) = await field.nodes()
    assert (await worker.start()).task_id == task_id
    assert len(field.slurm.submits) == 1


async def test_another_leader_on_the_store_goes_on(field: Field) -> None:
    task_id = await field.asked()
    # Its engines are its own, what is in the cluster and in the store is the same.
    field.lab.core.put_state(Engines({"slurm": FakeCluster(jobs=field.slurm.jobs, submits=field.slurm.submits)}))
    await field.look()
    assert len(field.slurm.submits) == 1
    (worker,) = await field.nodes()
    assert (await worker.start()).task_id == task_id


async def test_a_job_that_is_requeued_waits_again(field: Field) -> None:
    task_id = await field.asked()
    (worker,) = await field.nodes()
    offer = await worker.start()
    await worker.finish(offer.token, "released", "released")
    field.slurm.now("waiting", "pending (BeginTime)")
    await field.look()
    assert await field.stands(task_id) == ("queued", "released")
    row = await field.row()
    assert (row.state, row.running_at, row.told) == ("waiting", None, "pending (BeginTime)")
    (again,) = await field.nodes()
    assert (await again.start()).attempt == 2
    assert len(field.slurm.submits) == 1


@pytest.mark.parametrize("how", ["paused", "cancelled", "removed"])
async def test_nodes_that_are_needed_no_more_are_given_back(field: Field, how: str) -> None:
    task_id = await field.asked()
    (worker,) = await field.nodes()
    if how == "paused":
        offer = await worker.start()
        await control.pause(field.lab.core, field.lab.admin, task_id)
        await worker.finish(offer.token, "paused", "paused")
    else:
        await tasks.cancel(field.lab.core, field.lab.admin, task_id)
        if how == "removed":
            await tasks.remove(field.lab.core, field.lab.admin, task_id)
    await field.look()
    assert (await worker.exchange()).drain is True
    assert (await field.row()).state == "leaving"
    await field.look(after_s=LEAVE_S - 10)
    assert field.slurm.cancels == []
    await field.look(after_s=20)
    assert field.slurm.cancels == [field.slurm.newest]
    field.slurm.now("ended", "cancelled", withdrawn=True)
    await field.look()
    if how == "removed":
        assert await field.rows() == []
    else:
        assert (await field.row()).state == "ended"
        assert (await field.lab.task(task_id)).status == how
    assert len(field.slurm.submits) == 1


async def test_a_job_without_nodes_is_cancelled_at_once_and_a_resumed_task_gets_another(field: Field) -> None:
    task_id = await field.asked()
    (worker,) = await field.nodes()
    offer = await worker.start()
    await control.pause(field.lab.core, field.lab.admin, task_id)
    await worker.finish(offer.token, "paused", "paused")
    field.slurm.now("waiting", "pending (BeginTime)")
    await field.look()
    assert field.slurm.cancels == [field.slurm.newest]
    await reruns.resume(field.lab.core, field.lab.admin, task_id)
    assert await field.why(task_id) == "waiting: job 101 of slurm is ending, then nodes are requested again."
    field.slurm.now("ended", "cancelled", withdrawn=True)
    await field.look()
    await field.look()
    assert await field.stands(task_id) == ("queued", "resumed")
    assert field.slurm.submits == [f"tunefleet-{task_id}-1", f"tunefleet-{task_id}-2"]


async def test_three_jobs_of_no_use_are_enough(field: Field) -> None:
    task_id = await field.asked()
    for number in (1, 2, 3):
        assert len(field.slurm.submits) == number
        field.slurm.now("ended", f"failed (NonZeroExitCode) {number}")
        await field.look()
        await field.look()
    task = await field.lab.task(task_id)
    assert (task.status, task.reason, task.error) == (
        "failed",
        "no_nodes",
        "slurm has no nodes for it: 3 jobs ended before a worker took the task; of the last one: "
        "failed (NonZeroExitCode) 3.",
    )
    assert [row.barren for row in await field.rows()] == [1, 1, 1]


async def test_a_job_that_served_its_task_is_not_of_no_use(field: Field) -> None:
    task_id = await field.asked()
    for _ in range(4):
        (worker,) = await field.nodes()
        await worker.start()
        await field.look()
        field.slurm.now("ended", "timeout (TimeLimit)")
        await field.look()
        await field.look()
    # Each ended with the attempt that it had; losing nodes costs the task what losing workers costs.
    assert (await field.lab.task(task_id)).status == "queued"
    assert [row.barren for row in await field.rows()] == [0] * 5


async def test_what_the_cluster_does_not_want_fails_the_task(field: Field) -> None:
    field.slurm.refusal = ConflictError("Slurm refuses: Batch job submission failed: Invalid account.")
    task_id = await field.asked()
    task = await field.lab.task(task_id)
    assert (task.status, task.reason) == ("failed", "no_nodes")
    assert task.error == "slurm has no nodes for it: Slurm refuses: Batch job submission failed: Invalid account."
    assert [row.state for row in await field.rows()] == ["ended"]
    await field.look()
    assert field.slurm.submits == []


async def test_a_cluster_that_is_away_costs_nothing(field: Field) -> None:
    field.slurm.error = AWAY
    task_id = await field.lab.submit(ON_SLURM)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            await field.look(after_s=60)
    assert len(await field.rows()) == 1, "nothing is asked for anew while it is not known what became of the first"
    assert "Unable to contact" in await field.why(task_id)
    field.slurm.error = None
    await field.look()
    await field.look()
    (worker,) = await field.nodes()
    offer = await worker.start()
    field.slurm.error = AWAY
    for _ in range(5):
        with pytest.raises(UnreachableError):
            await field.look()
    field.slurm.error = None
    await field.look()
    assert await field.stands(task_id) == ("running", "started")
    await worker.finish(offer.token)
    assert [row.barren for row in await field.rows()] == [0, 0]


async def test_one_cluster_that_is_away_does_not_hold_up_the_other(field: Field) -> None:
    ray = FakeCluster(error=AWAY)
    field.lab.core.put_state(Engines({"ray": ray, "slurm": field.slurm}))
    await field.lab.submit(TRAIN.rstrip() + "\n  engine: ray\n")
    await field.lab.submit(ON_SLURM)
    with pytest.raises(UnreachableError):
        await field.look()
    assert (len(field.slurm.submits), ray.submits) == (1, [])


async def test_a_job_that_cannot_be_cancelled_does_not_hold_up_the_others(
    field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await field.lab.submit(ON_SLURM), await field.lab.submit(ON_SLURM)
    await field.look()

    def refuses(name: str) -> None:
        raise ConflictError(f"Slurm refuses: {name} is not yours")

    field.slurm.cancel = refuses  # type: ignore[method-assign]
    for task_id in (first, second):
        await tasks.cancel(field.lab.core, field.lab.admin, task_id)
    await field.look()
    assert [row.state for row in await field.rows()] == ["leaving", "leaving"]
    assert [line for line in caplog.messages if "cannot cancel job" in line] == [
        f"slurm cannot cancel job tunefleet-{task_id}-1: Slurm refuses: tunefleet-{task_id}-1 is not yours"
        for task_id in (first, second)
    ]


@pytest.mark.parametrize("when", ["waiting", "running"])
async def test_a_job_that_somebody_cancels_in_the_cluster_fails_its_task(field: Field, when: str) -> None:
    task_id = await field.asked()
    if when == "running":
        (worker,) = await field.nodes()
        offer = await worker.start()
    field.slurm.now("ended", "cancelled", withdrawn=True)
    await field.look()
    task = await field.lab.task(task_id)
    assert (task.status, task.reason) == ("failed", "no_nodes")
    assert task.error == "slurm has no nodes for it: its job was cancelled in the cluster (cancelled)."
    if when == "running":
        with pytest.raises(AuthError):
            await field.lab.attempt(offer.token)


async def test_nodes_with_different_releases_fail_the_task_by_name(field: Field) -> None:
    task_id = await field.asked(ON_TWO)
    await field.nodes(dict(TWO), {"torch_version": "2.14"})
    await field.look()
    task = await field.lab.task(task_id)
    assert (task.status, task.reason) == ("failed", "no_nodes")
    assert "the nodes run different releases (node0: " in (task.error or "")
    assert "torch 2.13; node1: " in (task.error or "")
    assert field.slurm.cancels == [field.slurm.newest]


async def test_nodes_without_a_gpu_fail_the_task_by_name(field: Field) -> None:
    task_id = await field.asked(on_slurm("resources: {hardware: {gpu: {count: 1}}}"))
    await field.nodes({})
    await field.look()
    assert (await field.lab.task(task_id)).error == (
        "slurm has no nodes for it: the node node0 has 0 GPUs, 1 are needed."
    )


async def test_one_node_needs_no_torch(field: Field) -> None:
    task_id = await field.asked()
    await field.nodes({"torch_version": None})
    await field.look()
    assert await field.stands(task_id) == ("queued", "ready")


async def test_of_an_elastic_task_nodes_that_are_of_no_use_do_not_matter_where_enough_others_are(field: Field) -> None:
    task_id = await field.asked(on_slurm('resources: {nodes: "2:3"}'))
    one, two, _ = await field.nodes(dict(TWO), dict(TWO), {"torch_version": "2.14"})
    await field.look()
    assert await field.stands(task_id) == ("queued", "ready")
    await scheduler.run_once(field.lab.core)
    field.lab.clock.advance(2.0)
    assert [len((await worker.exchange()).offers) for worker in (one, two)] == [1, 1]


async def test_nodes_of_which_too_few_come_are_given_back(field: Field) -> None:
    task_id = await field.asked(ON_TWO)
    (worker,) = await field.nodes(dict(TWO))
    for _ in range(40):
        await worker.exchange()
        await field.look(after_s=15.0)
    await worker.exchange()
    await field.look(after_s=15.0)
    assert field.slurm.cancels == [field.slurm.newest]
    field.slurm.now("ended", "cancelled", withdrawn=True)
    await field.look()
    row = await field.row()
    assert (row.barren, row.told) == (1, "only 1 of its 2 nodes connected within 600 s (cancelled)")
    assert (await field.why(task_id)).endswith(
        "The last job ended: only 1 of its 2 nodes connected within 600 s (cancelled)."
    )


async def _on_two(field: Field) -> tuple[str, FakeWorker]:
    """Let a task run on two nodes; returns it, and the worker on the first."""
    task_id = await field.asked(ON_TWO)
    one, two = await field.nodes(dict(TWO), dict(TWO))
    await scheduler.run_once(field.lab.core)
    field.lab.clock.advance(2.0)
    for worker in (one, two):
        for offer in (await worker.exchange()).offers:
            await worker.accept(offer.token)
    return task_id, one


async def test_what_a_lost_job_ran_is_placed_anew(field: Field) -> None:
    task_id, _ = await _on_two(field)
    assert (await field.lab.task(task_id)).status == "running"
    field.slurm.jobs.clear()
    await field.look(after_s=VANISHED_S)
    await field.look()
    task = await field.lab.task(task_id)
    assert (task.status, task.reason) == ("queued", "worker_lost")
    assert field.slurm.submits[-1] == f"tunefleet-{task_id}-2"
    assert (await field.rows())[0].barren == 0


async def test_nodes_that_are_left_when_another_died_are_given_back_and_asked_for_anew(field: Field) -> None:
    task_id, one = await _on_two(field)
    await field.look()
    await field.lab.sweep(32, alive=(one,))
    assert await field.stands(task_id) == ("queued", "worker_lost")
    await field.look()
    assert (await field.row()).state == "running", "a worker may start there again"
    await field.lab.sweep(32, alive=(one,))
    await field.look()
    row = await field.row()
    assert (row.state, row.barren, row.told) == ("leaving", 0, "only 1 of its 2 nodes still have a worker")
    assert (await one.exchange()).drain is True
    field.slurm.now("ended", "failed (NonZeroExitCode)")
    await field.look()
    await field.look()
    assert field.slurm.submits[-1] == f"tunefleet-{task_id}-2"


async def test_a_task_of_an_engine_that_the_server_does_not_ask_any_more_says_so(field: Field) -> None:
    task_id = await field.lab.submit(ON_SLURM)
    field.lab.core.put_state(Engines())
    assert await field.why(task_id) == (
        "waiting: Slurm is not enabled on this server: an admin sets TUNEFLEET_SLURM=true where it has sbatch."
    )


async def test_jobs_of_an_engine_that_the_server_does_not_ask_any_more_are_over(field: Field) -> None:
    await field.asked()
    field.lab.core.put_state(Engines({"ray": FakeCluster()}))
    await field.look()
    row = await field.row()
    assert (row.state, row.told) == ("ended", "the server has no settings for this engine")


async def test_what_the_cluster_said_last_is_not_lost(field: Field) -> None:
    task_id = await field.asked()
    field.slurm.jobs[field.slurm.newest] = ClusterJobState("101", "waiting", "pending (Resources)")
    await field.look()
    assert await field.why(task_id) == "waiting: job 101 of slurm has no nodes yet (pending (Resources))."
    await reaper.run_once(field.lab.core)
    assert (await field.row()).state == "waiting"
