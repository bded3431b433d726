"""Quotas hold where they are counted, and what waits for one says so with the way out."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from tests.unit.campaign.service.desk import spec as campaign
from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeWorker, Lab
from tunefleet.artifacts import blobs
from tunefleet.campaign.service import service as campaign_jobs
from tunefleet.errors import AuthError, ConflictError, ForbiddenError, NotFoundError, QuotaError
from tunefleet.orchestrator.access import api_keys, projects, quotas
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.federation import service as federation_jobs
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import logs
from tunefleet.orchestrator.training_protocol import registered_jobs
from tunefleet.orchestrator.workers import registration, workers
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import BlobQuery, FileEntry, KeyCreate, SubmitRequest
from tunefleet.schemas.projects import ProjectChange, ProjectCreate
from tunefleet.schemas.training_protocol.jobs import JobRegistration
from tunefleet.schemas.worker_link import Gpu
from tunefleet.spec.options.federation_options import FederationSpec

GPUS = tuple(Gpu(index=number, uuid=f"GPU-{number}", name="L40", memory_total_bytes=48 << 30) for number in range(2))
ON_GPU = TRAIN.replace("spec:\n", "spec:\n  resources: {hardware: {gpu: {count: 2}}}\n")


async def member(lab: Lab, project: str, role: str = "member", **quota: object) -> Actor:
    """Make a project unless it is there, and return somebody of it."""
    if project not in {each.name for each in await projects.list_(lab.core, lab.admin)}:
        await projects.create(lab.core, lab.admin, ProjectCreate.model_validate({"name": project, **quota}))
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name=f"{project}-{role}", role=role, project=project))
    return await api_keys.authenticate(lab.core, made.secret)


async def submit(lab: Lab, who: Actor, document: str = ECHO) -> str:
    made = await workflows.submit(lab.core, who, SubmitRequest(document=document))
    return made.tasks[0].id


async def _why(lab: Lab, who: Actor, task_id: str) -> str:
    told = (await explain.of_task(lab.core, who, task_id)).why
    assert (await tasks.get(lab.core, who, task_id)).why == told
    return told or ""


async def test_no_more_tasks_run_than_a_project_may_have(lab: Lab) -> None:
    red, worker = await member(lab, "red", max_running=2), await lab.online()
    ids = [await submit(lab, red) for _ in range(4)]
    offers = await worker.offers()
    assert [offer.task_id for offer in offers] == ids[:2]
    assert await _why(lab, red, ids[2]) == (
        "waiting: 2 runs of project red are active, and its quota is 2; this run starts when one ends "
        "(an admin can raise it: tunefleet projects set red --max-running N)."
    )
    await worker.accept(*(offer.token for offer in offers))
    await worker.finish(offers[0].token)
    assert [offer.task_id for offer in await worker.offers()] == [ids[2]]
    await projects.change(lab.core, lab.admin, "red", ProjectChange(max_running=None))
    assert [offer.task_id for offer in await worker.offers()][-1] == ids[3]


async def test_a_quota_of_one_project_leaves_the_others_alone(lab: Lab) -> None:
    red, blue, worker = await member(lab, "red", max_running=0), await member(lab, "blue"), await lab.online()
    held, free = await submit(lab, red), await submit(lab, blue)
    assert [offer.task_id for offer in await worker.offers()] == [free]
    assert "its quota is 0" in await _why(lab, red, held)


async def test_gpu_hours_of_the_month_are_counted_while_a_task_runs_and_when_it_has_ended(lab: Lab) -> None:
    lab.clock.wall = quotas.month_start(lab.clock.wall) + 86_400.0
    red, worker = await member(lab, "red", gpu_hours=3.0), await lab.online()
    await worker.register(gpus=GPUS, slots={"light": 8, "job": 2})
    first, second = await submit(lab, red, ON_GPU), await submit(lab, red, ON_GPU)
    light = await submit(lab, red)
    offers = {offer.task_id: offer for offer in await worker.offers()}
    assert set(offers) == {first, light}
    assert len(offers[first].gpus) == 2
    await worker.accept(*(offer.token for offer in offers.values()))
    lab.clock.advance(7200.0)
    assert (await projects.get(lab.core, red, "red")).uses.gpu_hours == pytest.approx(4.0, abs=0.01)
    await worker.finish(offers[first].token)
    assert await worker.offers() == ()
    told = await _why(lab, red, second)
    assert "has used 4.0 of its 3 GPU hours this month" in told
    assert "tunefleet projects set red --gpu-hours" in told
    lab.clock.wall += 31 * 86_400.0
    assert (await projects.get(lab.core, red, "red")).uses.gpu_hours == 0.0
    await worker.exchange()
    await scheduler.run_once(lab.core)
    assert (await tasks.get(lab.core, red, second)).status == "dispatched"


async def test_files_over_the_quota_are_refused_and_what_a_job_brings_is_kept(lab: Lab) -> None:
    red, worker = await member(lab, "red"), await lab.online()
    await submit(lab, red)
    used = (await projects.get(lab.core, red, "red")).uses.storage_bytes
    await projects.change(lab.core, lab.admin, "red", ProjectChange(storage_bytes=used + 10))
    await lab.upload(red, b"12345678")
    await lab.upload(red, b"12345678")  # what is there costs nothing
    with pytest.raises(QuotaError, match=f"uses {used + 8} of the {used + 10} bytes of .* quota; 3 more") as refused:
        await lab.upload(red, b"abc")
    assert "tunefleet projects set red --storage" in str(refused.value)
    query = BlobQuery(blobs=(FileEntry(path="x", digest="0" * 64, size_bytes=3),))
    with pytest.raises(QuotaError):
        await artifacts.missing(lab.core, red, query)
    offer = await worker.start()
    await lab.upload(await lab.attempt(offer.token), b"a result")
    assert (await projects.get(lab.core, red, "red")).uses.storage_bytes == used + 16


async def test_documents_count_with_what_their_tasks_have_of_them_until_they_are_removed(lab: Lab) -> None:
    red = await member(lab, "red", storage_bytes=40_000)
    long = ECHO.replace("[a, b]", f"[{'x' * 8_000}]")

    async def used() -> int:
        return (await projects.get(lab.core, red, "red")).uses.storage_bytes

    first = await workflows.submit(lab.core, red, SubmitRequest(document=long), idempotency_key="k")
    one = await used()
    assert one > 2 * 8_000, "the document, and its task's spec"
    await submit(lab, red, long)
    with pytest.raises(QuotaError, match=f"uses {2 * one:,} of the 40,000 bytes"):
        await submit(lab, red, long)
    assert await used() == 2 * one, "what is refused counts nothing"
    again = await workflows.submit(lab.core, red, SubmitRequest(document=long), idempotency_key="k")
    assert again.id == first.id, "what is there already is told, whatever the quota"
    with pytest.raises(QuotaError):
        await registered_jobs.register(lab.core, red, JobRegistration(job_id="job-000001", config={"x": "y" * 9_000}))
    await workflows.cancel(lab.core, red, first.id)
    await workflows.remove(lab.core, red, first.id)
    assert await used() == one
    await submit(lab, lab.admin, long)
    assert await used() == one, "each project has its own"


async def test_documents_of_campaigns_and_federations_count_too(lab: Lab) -> None:
    red = await member(lab, "red", storage_bytes=4_000)

    async def used() -> int:
        return (await projects.get(lab.core, red, "red")).uses.storage_bytes

    async def apply(length: int) -> None:
        await campaign_jobs.apply(lab.core, red, {"c": campaign(model_repo="org/" + "m" * length)})

    await apply(500)
    short = await used()
    await apply(1_500)
    assert await used() == short + 1_000
    with pytest.raises(QuotaError):
        await apply(4_000)
    before = await used()
    made = await federation_jobs.create(lab.core, red, FederationSpec.model_validate({"name": "f", "base_model": "m"}))
    assert await used() > before
    await federation_jobs.cancel(lab.core, red, made.id)
    await federation_jobs.remove(lab.core, red, made.id)
    assert await used() == before


async def test_what_a_registered_job_is_told_anew_counts_as_it_is_now(lab: Lab) -> None:
    red = await member(lab, "red", storage_bytes=10_000)

    async def used(**config: str) -> int:
        await registered_jobs.register(lab.core, red, JobRegistration(job_id="job-000001", config=config))
        return (await projects.get(lab.core, red, "red")).uses.storage_bytes

    short, long = await used(x="y"), await used(x="y" * 1_001)
    assert (long - short, await used(x="y")) == (1_000, short)
    with pytest.raises(QuotaError):
        await used(x="y" * 20_000)


async def test_an_archived_project_rests_until_it_is_restored(lab: Lab) -> None:
    red, worker = await member(lab, "red"), await lab.online()
    task_id = await submit(lab, red)
    await projects.change(lab.core, lab.admin, "red", ProjectChange(archived=True))
    assert await worker.offers() == ()
    with pytest.raises(ConflictError, match="Project red is archived"):
        await member(lab, "red", role="viewer")
    await projects.change(lab.core, lab.admin, "red", ProjectChange(archived=False))
    assert [offer.task_id for offer in await worker.offers()] == [task_id]
    with pytest.raises(ConflictError, match="default project cannot be archived"):
        await projects.change(lab.core, lab.admin, "default", ProjectChange(archived=True))


async def test_a_key_of_an_archived_project_is_refused_at_once(lab: Lab) -> None:
    await projects.create(lab.core, lab.admin, ProjectCreate(name="red"))
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name="r", project="red"))
    await api_keys.authenticate(lab.core, made.secret)
    await projects.change(lab.core, lab.admin, "red", ProjectChange(archived=True))
    with pytest.raises(AuthError, match="Project red is archived"):
        await api_keys.authenticate(lab.core, made.secret)


async def test_a_worker_with_a_key_of_a_project_serves_that_project_alone(lab: Lab) -> None:
    red, blue = await member(lab, "red"), await member(lab, "blue")
    bound = await lab.online("red-box", actor=await member(lab, "red", role="worker"))
    await submit(lab, blue)
    mine = await submit(lab, red)
    assert [offer.task_id for offer in await bound.offers()] == [mine]
    assert [each.id for each in (await workers.list_(lab.core, red)).items] == ["red-box"]
    assert (await workers.list_(lab.core, blue)).items == ()
    with pytest.raises(NotFoundError):
        await workers.get(lab.core, blue, "red-box")


async def test_only_who_looks_after_all_makes_and_changes_projects(lab: Lab) -> None:
    boss = await member(lab, "red", role="admin")
    with pytest.raises(ForbiddenError, match="admin key of project default"):
        await projects.create(lab.core, boss, ProjectCreate(name="blue"))
    with pytest.raises(ForbiddenError):
        await projects.change(lab.core, boss, "red", ProjectChange(gpu_hours=None))
    assert [each.name for each in await projects.list_(lab.core, boss)] == ["red"]
    with pytest.raises(NotFoundError):
        await projects.get(lab.core, boss, "default")
    with pytest.raises(NotFoundError):
        await api_keys.create(lab.core, boss, KeyCreate(name="x", project="default"))
    with pytest.raises(ConflictError, match="Project red already exists"):
        await projects.create(lab.core, lab.admin, ProjectCreate(name="red"))


async def test_what_unfinished_uploads_have_left_counts_and_is_refused_before_its_first_byte(lab: Lab) -> None:
    red = await member(lab, "red", storage_bytes=10)
    for number in range(3):
        digest = hashlib.sha256(bytes([number])).hexdigest()
        if number < 2:
            await artifacts.reserve(lab.core, red, digest, 5)
            with lab.core.blobs.append(digest, 0, 5, scope="red") as upload:
                upload.write(b"four")
        else:
            with pytest.raises(QuotaError, match="quota, 10 more are reserved by unfinished uploads; 5 more"):
                await artifacts.reserve(lab.core, red, digest, 5)
    await artifacts.reserve(lab.core, red, hashlib.sha256(bytes([1])).hexdigest(), 5)  # goes on where it was
    with pytest.raises(QuotaError):
        await artifacts.reserve(lab.core, red, "f" * 64, 11)
    await artifacts.reserve(lab.core, lab.admin, "f" * 64, 11)  # another project, without a quota


async def test_uploads_that_begin_together_are_reserved_whole_one_after_the_other(lab: Lab) -> None:
    """Each alone has room; together, a file of 1 MB that is not begun yet counts as much as one that is."""
    red = await member(lab, "red", storage_bytes=10)
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(8)]
    found = await asyncio.gather(
        *(artifacts.reserve(lab.core, red, digest, 4) for digest in digests), return_exceptions=True
    )
    assert [type(each) for each in found if each is not None] == [QuotaError] * 6
    taken = [digest for digest, each in zip(digests, found, strict=True) if each is None]
    await artifacts.reserve(lab.core, red, taken[0], 4)  # the same one again
    data = bytes([digests.index(taken[0])])
    with lab.core.blobs.append(taken[0], 0, 1, scope="red") as upload:
        upload.write(data)
        upload.finish()
    await artifacts.reserve(lab.core, red, "e" * 64, 5)  # what is whole is no announcement any more


async def test_an_upload_that_nobody_goes_on_with_reserves_nothing_but_what_is_here(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = await member(lab, "red", storage_bytes=10)
    digest = hashlib.sha256(b"left alone").hexdigest()
    await artifacts.reserve(lab.core, red, digest, 9)
    with lab.core.blobs.append(digest, 0, 9, scope="red") as upload:
        upload.write(b"l")
    with pytest.raises(QuotaError):
        await artifacts.reserve(lab.core, red, "e" * 64, 9)
    (part,) = lab.core.blobs.uploads.glob(f"{digest}*.part")
    os.utime(part, (1.0, 1.0))
    monkeypatch.setattr(blobs, "_ASLEEP_S", -1.0)
    await artifacts.reserve(lab.core, red, "e" * 64, 9)


async def test_of_a_tasks_log_so_much_is_kept_and_a_line_says_so(lab: Lab) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"task_log_bytes": 1 << 16})
    worker = await lab.online()
    document = TRAIN + "  retry: {max_attempts: 5, backoff_s: 0}\n"
    await submit(lab, lab.admin, document)
    offer = await worker.start()
    attempt, task_id = await lab.attempt(offer.token), offer.task_id
    line = b"x" * 99 + b"\n"
    for number in range(10):
        reached = await logs.append(lab.core, attempt, number * 10_000, line * 100)
        assert reached.cursor == (number + 1) * 10_000, "the worker need not send it again"
    told = await logs.read(lab.core, lab.admin, task_id, limit_bytes=1 << 20)
    assert 1 << 16 < told.size_bytes < (1 << 16) + 300
    assert told.text.endswith("The rest is in its folder on its worker. ---\n")
    assert told.text.count("TUNEFLEET_TASK_LOG_BYTES") == 1
    await worker.finish(offer.token, "failed", "crashed")
    again = await worker.start()
    attempt = await lab.attempt(again.token)
    for number in range(2):
        await logs.append(lab.core, attempt, number * 100, line)
    told = await logs.read(lab.core, lab.admin, task_id, limit_bytes=1 << 20)
    assert told.text.count("TUNEFLEET_TASK_LOG_BYTES") == 2, "of each attempt it is said once"


async def test_a_log_that_ends_right_at_the_limit_says_so_with_what_follows(lab: Lab) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"task_log_bytes": 1 << 16})
    worker = await lab.online()
    await submit(lab, lab.admin)
    offer = await worker.start()
    attempt = await lab.attempt(offer.token)
    for number in range(4):
        await logs.append(lab.core, attempt, number << 15, b"y" * (1 << 15))
    told = await logs.read(lab.core, lab.admin, offer.task_id, limit_bytes=1 << 20)
    assert told.text.count("TUNEFLEET_TASK_LOG_BYTES") == 1


async def test_with_one_key_so_many_workers_register(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MAX_WORKERS_PER_KEY", 2)
    for name in ("a", "b", "a"):
        await FakeWorker(lab, id=name, session=name, state_id=name).register()
    with pytest.raises(ForbiddenError, match="2 workers have registered with this key"):
        await FakeWorker(lab, id="c", session="c", state_id="c").register()
