"""The key of a cluster's job and its workers: good for one task, and gone with the job."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.clusters.fake import Field
from tests.unit.orchestrator.lab import TRAIN
from tunefleet.db.fleet import worker_rows
from tunefleet.errors import AuthError, ForbiddenError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.fleet.agents import Introduction
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workers import workers
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest


async def test_the_key_of_a_job_is_good_for_its_task_alone(field: Field) -> None:
    other = await field.lab.submit(TRAIN)
    task_id = await field.asked()
    (worker,) = await field.nodes({"tags": ("lab",)})
    offers = await worker.offers()
    assert [offer.task_id for offer in offers] == [task_id]
    mine = await field.lab.core.read(lambda each: worker_rows.get(each, worker.id))
    assert mine is not None
    assert f'"only:{task_id}"' in mine.capabilities
    # And no other worker gets the task.
    await worker.exchange()
    plain = await field.lab.online("plain")
    assert [offer.task_id for offer in await plain.offers()] == [other]
    actor = worker.actor
    assert actor is not None
    with pytest.raises(ForbiddenError):
        await workflows.submit(field.lab.core, actor, SubmitRequest(document=TRAIN))
    # As an agent it gets nothing of what the task's owner has.
    assert agents.served_owner(actor) not in {None, field.lab.admin.owner}


async def test_an_agent_of_the_tasks_owner_is_not_the_jobs(field: Field) -> None:
    await field.asked()
    owner = await field.lab.actor("admin", "member")
    who = Introduction("an-agent-of-mine")
    await agents.present(field.lab.core, owner, who)
    (worker,) = await field.nodes()
    assert worker.actor is not None
    with pytest.raises(ForbiddenError, match="belongs to another user"):
        await agents.present(field.lab.core, worker.actor, who)


async def test_nothing_of_a_job_is_left_when_it_is_over(field: Field) -> None:
    before = {key.name for key in await api_keys.list_(field.lab.core, field.lab.admin)}
    task_id = await field.asked()
    assert {key.name for key in await api_keys.list_(field.lab.core, field.lab.admin)} == before | {field.slurm.newest}
    secret = field.slurm.asks[field.slurm.newest].environment["TUNEFLEET_WORKER_KEY"]
    (worker,) = await field.nodes()
    offer = await worker.start()
    await tasks.cancel(field.lab.core, field.lab.admin, task_id)
    await worker.finish(offer.token, "cancelled", "cancelled_by_user")
    await field.look()
    field.slurm.now("ended", "completed")
    await field.look()
    assert {key.name for key in await api_keys.list_(field.lab.core, field.lab.admin)} == before
    assert (await workers.list_(field.lab.core, field.lab.admin)).items == ()
    assert await field.lab.core.read(worker_rows.all_controls) == {}
    assert worker.id not in field.lab.core.state(Fleet).presences
    with pytest.raises(AuthError):
        await api_keys.authenticate(field.lab.core, secret)


async def test_a_worker_that_comes_when_its_job_is_over_is_refused(field: Field) -> None:
    await field.asked()
    (worker,) = await field.nodes()
    field.slurm.now("ended", "failed")
    await field.look()
    # Its key was looked up a moment before.
    with pytest.raises(ForbiddenError, match="has ended"):
        await worker.register()
    assert (await workers.list_(field.lab.core, field.lab.admin)).items == ()


async def test_a_worker_that_comes_when_its_job_leaves_leaves_too(field: Field) -> None:
    task_id = await field.asked()
    (worker,) = await field.nodes()
    await tasks.cancel(field.lab.core, field.lab.admin, task_id)
    await field.look()
    late = await field.worker(1)
    assert (await late.exchange()).drain is True
    assert (await worker.exchange()).drain is True
