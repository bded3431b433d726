"""What is kept although it ended long ago: what another task still reads, whoever asks for its removal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.orchestrator.federating import Party, keep
from tests.unit.orchestrator.lab import TRAIN, Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.db import Connection
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import service
from tunefleet.orchestrator.storage import artifacts, garbage_collection
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workers import registration, workers
from tunefleet.orchestrator.workflows import prune, workflows
from tunefleet.schemas.api import WorkflowDetail
from tunefleet.schemas.federated import FederationCreated
from tunefleet.schemas.worker_link import Offer


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


async def test_what_a_task_that_has_not_ended_may_read_is_not_removed(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    earlier = await pipe.submit(stage("earlier"))
    await pipe.run()
    pipe.worker.want = {"light": 1}
    flow = await pipe.submit(stage("a"), stage("b", "a", external=[earlier.tasks[0].id]))
    (first,) = await pipe.take()
    await pipe.end(first, {})
    reader = flow.tasks[1].id
    offers: list[Offer] = []
    for status in ("queued", "running"):
        assert (await pipe.lab.task(reader)).status == status
        for id_ in (earlier.tasks[0].id, flow.tasks[0].id):
            with pytest.raises(ConflictError, match=f"Run {reader} still needs the result"):
                await tasks.remove(core, admin, id_)
        assert (await prune.run(core, -1.0)).workflows == ()
        offers = offers or await pipe.take()
    await pipe.end(offers[0], {})
    await tasks.remove(core, admin, flow.tasks[0].id)
    assert set((await prune.run(core, -1.0)).workflows) == {earlier.id, flow.id}


async def test_a_retry_keeps_the_finished_stage_that_it_uses(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    flow = await pipe.submit(stage("a"), stage("b", "a"))
    await pipe.run({"b": "bad_input"})
    again = await workflows.retry(core, admin, flow.id)
    assert [task.status for task in again.tasks] == ["queued"]
    with pytest.raises(ConflictError, match=f"Run {again.tasks[0].id} still needs the result"):
        await workflows.remove(core, admin, flow.id)
    assert (await prune.run(core, -1.0)).workflows == ()
    assert (await pipe.lab.task(flow.tasks[0].id)).status == "completed"


async def test_what_a_task_comes_to_need_while_prune_looks_is_kept(
    pipe: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await pipe.submit(stage("first")), await pipe.submit(stage("second"))
    await pipe.run()
    write = ServerContext.write
    later: list[WorkflowDetail] = []

    async def submit_before(core: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        monkeypatch.setattr(ServerContext, "write", write)
        later.append(await pipe.submit(stage("later", external=[first.tasks[0].id])))
        return await write(core, operation)

    monkeypatch.setattr(ServerContext, "write", submit_before)
    assert (await prune.run(pipe.lab.core, -1.0)).workflows == (second.id,)
    assert (await pipe.task(first, "first")).status == "completed"
    assert (await pipe.states(later[0])) == {"later": "queued"}


async def test_a_task_keeps_the_artifact_that_it_reads_and_with_it_who_made_it(lab: Lab) -> None:
    worker = await lab.online()
    maker = await lab.submit(TRAIN)
    offer = await worker.start()
    made = await lab.publish(await lab.attempt(offer.token), "rows", b"rows")
    await worker.finish(offer.token)
    reader = await lab.submit(TRAIN.replace("prompts: [one, two]", f"artifact: {made.id}"))
    with pytest.raises(ConflictError, match=f"Run {reader} still needs the result"):
        await tasks.remove(lab.core, lab.admin, maker)
    assert (await prune.run(lab.core, -1.0)).workflows == ()
    await tasks.cancel(lab.core, lab.admin, reader)
    assert len((await prune.run(lab.core, -1.0)).workflows) == 2


def _federated(name: str) -> dict[str, Any]:
    spec = {
        "taskType": "lora_sft",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"prompts": ["one", "two"]},
        "federation": {"workers": 2},
    }
    return stage(name, spec=spec)


async def test_a_removed_worker_that_comes_back_is_told_which_tasks_were_removed_meanwhile(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    await worker.finish((await worker.start()).token)
    await lab.core.write(lambda connection: registration.leave(connection, worker.id, lab.clock.wall))
    await workers.remove(lab.core, lab.admin, worker.id)
    await tasks.remove(lab.core, lab.admin, task_id)
    back = await lab.online()
    assert (await back.exchange()).discard == (task_id,), "its folder is still there"


@pytest.mark.parametrize("how", ["task", "workflow", "prune"])
async def test_a_training_takes_its_federation_along(lab: Lab, tmp_path: Path, how: str) -> None:
    core, admin = lab.core, lab.admin
    worker = await lab.online()
    worker.want = {"job": 2, "light": 2}
    pipe = Pipelines(lab, worker)
    flow = await pipe.submit(_federated("train"))
    whole = (await pipe.task(flow, "train")).id
    (made,) = (await service.list_(core, admin)).items
    detail = await service.get(core, admin, made.id)
    group = Party(lab, FederationCreated(**dict(detail), token="", callback_secret=""), tmp_path)
    for number in range(2):
        await group.upload(f"part-{number}", 1.0 + number)
    await keep(core)
    version, archive = await group.version(), await group.packed()
    await workflows.cancel(core, admin, flow.id)
    for offer in await pipe.take():
        await worker.finish(offer.token, "cancelled", "cancelled_by_user")
    reader = await lab.submit(TRAIN.replace("prompts: [one, two]", f"artifact: {version.artifact_id}"))
    with pytest.raises(ConflictError, match=f"Run {reader} reads a version of its federation"):
        await tasks.remove(core, admin, whole)
    assert (await prune.run(core, -1.0)).workflows == ()
    await tasks.cancel(core, admin, reader)
    if how == "task":
        await tasks.remove(core, admin, whole)
    elif how == "workflow":
        await workflows.remove(core, admin, flow.id)
    else:
        assert flow.id in (await prune.run(core, -1.0)).workflows
    assert (await service.list_(core, admin)).items == ()
    assert core.blobs.has(version.sha256)
    assert core.blobs.has(archive.digest)
    lab.clock.advance(2 * artifacts.PIN_S)
    await garbage_collection.collect(core)
    assert not await lab.files() & {version.sha256, archive.digest}
