"""Files: known once verified, kept while somebody needs them, read by whom they concern."""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.unit.orchestrator.lab import TRAIN, Lab
from tunefleet.artifacts import manifest_digest
from tunefleet.db import Connection, after_commit
from tunefleet.db.repositories import artifacts as rows
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, NotFoundError, OffsetConflict
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.storage.artifacts import PIN_S
from tunefleet.orchestrator.storage.garbage_collection import Collected, delete_files
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workflows import prune, workflows
from tunefleet.schemas.api import ArtifactCreate, BlobQuery, FileEntry, SubmitRequest


def entry(data: bytes) -> FileEntry:
    return FileEntry(path="file", digest=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


async def missing(lab: Lab, *data: bytes) -> list[tuple[str, int]]:
    reply = await artifacts.missing(lab.core, lab.admin, BlobQuery(blobs=tuple(entry(piece) for piece in data)))
    return [(blob.digest, blob.offset) for blob in reply.missing]


async def test_a_file_is_missing_until_it_is_whole(lab: Lab) -> None:
    wanted = entry(b"hello")
    assert await missing(lab, b"hello", b"hello") == [(wanted.digest, 0)]
    with lab.core.blobs.append(wanted.digest, 0, 5) as upload:
        upload.write(b"hel")
    assert await missing(lab, b"hello") == [(wanted.digest, 3)]
    with lab.core.blobs.append(wanted.digest, 3, 5) as upload:
        upload.write(b"lo")
        assert upload.finish()
    await artifacts.stored(lab.core, lab.admin, wanted.digest, 5)
    assert await missing(lab, b"hello") == []


async def test_what_is_not_on_disk_cannot_be_recorded(lab: Lab) -> None:
    with pytest.raises(OffsetConflict) as caught:
        await artifacts.stored(lab.core, lab.admin, entry(b"nowhere").digest, 7)
    assert caught.value.cursor == 0


async def test_publishing_is_idempotent_and_checked(lab: Lab) -> None:
    first = await lab.publish(lab.admin, "rows", b"one")
    assert await lab.publish(lab.admin, "rows", b"one") == first
    second = await lab.publish(lab.admin, "rows", b"two")
    assert second.id != first.id
    assert (await artifacts.get(lab.core, lab.admin, "rows")).id == second.id
    assert (await artifacts.get(lab.core, lab.admin, first.digest)).id == first.id
    assert (await artifacts.get(lab.core, lab.admin, first.id)).files == (entry(b"one"),)
    lost = entry(b"never uploaded")
    with pytest.raises(ArtifactError, match="was not uploaded"):
        await artifacts.publish(
            lab.core, lab.admin, ArtifactCreate(name="x", files=(lost,), digest=manifest_digest([lost]))
        )
    with pytest.raises(ArtifactError, match="digest"):
        await artifacts.publish(lab.core, lab.admin, ArtifactCreate(name="x", files=(entry(b"one"),), digest="0" * 64))


async def test_an_attempt_publishes_for_its_task(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN + "  retry: {max_attempts: 2, backoff_s: 0}\n")
    offer = await worker.start()
    attempt = await lab.attempt(offer.token)
    old = await lab.publish(attempt, "checkpoint", b"step 5", kind="adapter")
    assert (old.task_id, old.owner) == (task_id, "admin")
    new = await lab.publish(attempt, "checkpoint", b"step 9", kind="adapter")
    mine = await artifacts.list_(lab.core, lab.admin, task_id=task_id)
    assert [artifact.id for artifact in mine.items] == [new.id]
    told = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["artifact.published"], task_id=task_id)
    assert [event.data["id"] for event in told] == [old.id, new.id]
    with pytest.raises(ForbiddenError):
        await artifacts.publish(
            lab.core,
            attempt,
            ArtifactCreate(name="x", files=(), digest=manifest_digest([])),
            task_id="task-of-somebody-else",
        )
    await worker.finish(offer.token)
    # Said again, it is the same; new things are too late.
    assert (await lab.publish(attempt, "checkpoint", b"step 9", kind="adapter")).id == new.id
    with pytest.raises(ConflictError):
        await lab.publish(attempt, "checkpoint", b"step 12", kind="adapter")


async def test_who_may_read_a_file(lab: Lab) -> None:
    data = await lab.publish(lab.admin, "rows", b"rows")
    other = await lab.publish(lab.admin, "private", b"private")
    named = TRAIN.replace("data: {prompts: [one, two]}", "data: {artifact: rows, text_field: text}")
    worker = await lab.online(want={"job": 2})
    await worker.register(slots={"job": 2})
    await lab.submit(named)
    await lab.submit(TRAIN)
    reads, stranger = [await lab.attempt(offer.token) for offer in await worker.offers()]
    own = await lab.publish(stranger, "made", b"made")
    uploaded = (await lab.upload(stranger, b"on its way")).digest
    viewer = await lab.actor("eve", "viewer")

    async def may(who: object, digest: str) -> bool:
        return await artifacts.may_read_blob(lab.core, who, digest)  # type: ignore[arg-type]

    rows, private, made = (entry(piece).digest for piece in (b"rows", b"private", b"made"))
    assert [await may(viewer, digest) for digest in (rows, private, made, "0" * 64)] == [True, True, True, False]
    assert [await may(reads, digest) for digest in (rows, private, made, uploaded)] == [True, False, False, False]
    assert [await may(stranger, digest) for digest in (rows, private, made, uploaded)] == [False, False, True, True]
    assert not await may(lab.worker_key, rows)
    assert (await artifacts.get(lab.core, reads, data.digest)).id == data.id
    assert (await artifacts.get(lab.core, stranger, own.id)).id == own.id
    for who, reference in ((reads, other.digest), (stranger, data.digest)):
        with pytest.raises(NotFoundError):
            await artifacts.get(lab.core, who, reference)


async def test_what_nobody_needs_is_collected(lab: Lab) -> None:
    kept = await lab.publish(lab.admin, "kept", b"kept")
    removed = await lab.publish(lab.admin, "removed", b"removed")
    await lab.upload(lab.admin, b"never published")
    lab.clock.advance(PIN_S + lab.core.settings.garbage_grace_s)
    await lab.upload(lab.admin, b"fresh")
    assert await artifacts.collect_garbage(lab.core) == Collected(1, len(b"never published"))
    await artifacts.remove(lab.core, lab.admin, removed.id)
    assert await artifacts.collect_garbage(lab.core) == Collected(1, len(b"removed"))
    assert await lab.files() == {entry(b"kept").digest, entry(b"fresh").digest}
    assert (await artifacts.get(lab.core, lab.admin, kept.id)).files
    # It is gone for the next asker too.
    assert await missing(lab, b"removed") == [(entry(b"removed").digest, 0)]


async def test_who_was_told_that_a_file_is_there_keeps_it(lab: Lab) -> None:
    removed = await lab.publish(lab.admin, "removed", b"shared")
    lab.clock.advance(PIN_S + lab.core.settings.garbage_grace_s)
    assert await missing(lab, b"shared") == []
    await artifacts.remove(lab.core, lab.admin, removed.id)
    assert await artifacts.collect_garbage(lab.core) == Collected(0, 0)
    assert (await lab.publish(lab.admin, "again", b"shared")).digest == removed.digest
    lab.clock.advance(PIN_S + lab.core.settings.garbage_grace_s)
    assert await artifacts.collect_garbage(lab.core) == Collected(0, 0)


async def test_files_that_no_row_knows_are_collected(lab: Lab) -> None:
    """If they came since the server began: what was there before may be of a newer database."""
    orphan = entry(b"left by a crash between the file and its row")
    with lab.core.blobs.append(orphan.digest, 0, orphan.size_bytes) as upload:
        upload.write(b"left by a crash between the file and its row")
        assert upload.finish()
    written_at = lab.clock.wall + 1
    os.utime(str(lab.core.blobs.source(orphan.digest, "")), (written_at, written_at))
    lab.clock.wall = written_at + 1
    assert await artifacts.collect_garbage(lab.core) == Collected(0, 0)
    assert orphan.digest in await lab.files()
    lab.clock.wall = written_at + lab.core.settings.garbage_grace_s + 1
    assert await artifacts.collect_garbage(lab.core) == Collected(1, orphan.size_bytes)
    assert orphan.digest not in await lab.files()


async def test_a_file_that_another_server_records_in_time_is_not_deleted(lab: Lab) -> None:
    lab.core.blobs.others_write = True
    wanted, gone = entry(b"wanted again"), entry(b"gone")
    for each in (b"wanted again", b"gone"):
        await lab.upload(lab.admin, each)

    def record(connection: Connection) -> None:
        rows.add_blob(
            connection, project="default", digest=wanted.digest, size_bytes=wanted.size_bytes, at=lab.clock.wall
        )

    def remove(connection: Connection) -> None:
        rows.delete_blobs(connection, [wanted.digest, gone.digest], now=lab.clock.wall)
        delete_files(connection, lab.core.blobs, [wanted.digest, gone.digest])
        # As another server's operation, which has its turn between the rows and the files.
        after_commit(connection, lambda: lab.core.db.write(record))

    await lab.core.write(remove)
    await lab.core.write(lambda _connection: None)  # what follows the commit has been queued before this
    assert lab.core.blobs.has(wanted.digest)
    assert not lab.core.blobs.has(gone.digest)


async def test_prune_removes_what_ended_long_ago(lab: Lab) -> None:
    worker = await lab.online()
    old = await lab.submit(TRAIN)
    offer = await worker.start()
    made = await lab.publish(await lab.attempt(offer.token), "final_lora", b"weights")
    await worker.finish(offer.token)
    running = await lab.submit(TRAIN)
    lab.clock.advance(PIN_S + lab.core.settings.garbage_grace_s)
    recent = await lab.submit(TRAIN)
    await tasks.cancel(lab.core, lab.admin, recent)
    seen = await prune.run(lab.core, 3600.0, True)
    flow = (await lab.task(old)).workflow_id
    assert (seen.workflows, seen.artifacts, seen.freed_bytes, seen.dry_run) == ((flow,), (made.id,), 0, True)
    done = await prune.run(lab.core, 3600.0)
    assert (done.workflows, done.artifacts, done.freed_bytes) == ((flow,), (made.id,), len(b"weights"))
    assert {task.id for task in (await tasks.list_(lab.core, lab.admin)).items} == {running, recent}


async def test_lists_and_rights(lab: Lab) -> None:
    alice = await lab.actor("alice", "member")
    mine = await lab.publish(alice, "mine", b"a", kind="dataset")
    await lab.publish(lab.admin, "theirs", b"b", kind="model")
    assert [a.id for a in (await artifacts.list_(lab.core, alice, kind="dataset")).items] == [mine.id]
    assert [a.name for a in (await artifacts.list_(lab.core, alice, owner="admin")).items] == ["theirs"]
    page = await artifacts.list_(lab.core, alice, limit=1)
    assert len((await artifacts.list_(lab.core, alice, limit=1, cursor=page.next_cursor)).items) == 1
    with pytest.raises(ForbiddenError):
        await artifacts.remove(lab.core, alice, "theirs")
    with pytest.raises(ForbiddenError):
        await artifacts.missing(lab.core, await lab.actor("eve", "viewer"), BlobQuery(blobs=()))
    await artifacts.remove(lab.core, alice, "mine")
    with pytest.raises(NotFoundError):
        await artifacts.remove(lab.core, alice, "mine")


@pytest.mark.parametrize(
    "change", [{"path": "../file"}, {"path": "/etc/file"}, {"size_bytes": 3}, {"size_bytes": 2**70}, {"size_bytes": -1}]
)
async def test_a_list_of_files_that_is_not_true_or_not_safe_is_refused(lab: Lab, change: dict[str, object]) -> None:
    uploaded = await lab.upload(lab.admin, b"content")
    files = (uploaded.model_copy(update=change),)
    body = ArtifactCreate(name="x", files=files, digest=manifest_digest(files))
    with pytest.raises(ArtifactError):
        await artifacts.publish(lab.core, lab.admin, body)


async def test_a_list_says_what_each_model_was_made_of(lab: Lab) -> None:
    data = await lab.publish(lab.admin, "rows", b"rows", kind="dataset")
    document = TRAIN.replace("data: {prompts: [one, two]}", f"data: {{artifact: {data.id}, text_field: text}}")
    worker = await lab.online()
    trained = await lab.submit(document)
    offer = await worker.start()
    model = await lab.publish(await lab.attempt(offer.token), "final_lora", b"weights", kind="adapter")
    losses = {"held_out_before": 2.5, "held_out_after": 1.25}
    match = {"exact_match": {"rows": 4, "before": 0.25, "after": 0.5}}
    result = {"losses": losses, "held_out": match, "data": {"shape": "pair"}}
    await worker.finish(offer.token, result=result)
    adapter = f"checkpoint: {{load: {{taskId: {trained}}}}}"
    flow = SubmitRequest(document=f"{TRAIN}  {adapter}\n")
    again = (await workflows.submit(lab.core, lab.admin, flow, idempotency_key="camp-1/0/submit")).tasks[0].id
    next_offer = await worker.start()
    await lab.publish(await lab.attempt(next_offer.token), "final_lora", b"better", kind="adapter")

    page = await artifacts.list_(lab.core, lab.admin, kind="adapter,dataset", origin=True)
    later, first, uploaded = page.items
    assert (first.id, later.task_id, uploaded.origin) == (model.id, again, None)
    assert first.origin is not None
    assert later.origin is not None
    assert first.origin.model_dump() == {
        "task_name": "train",
        "task_kind": "lora_sft",
        "status": "completed",
        "model": {"identifier": "builtin:gsm8k-llama-2m"},
        "data": "rows",
        "inputs": {"data.artifact": data.digest},
        "loads": (),
        "eval_loss": (2.5, 1.25),
        "exact_match": (0.25, 0.5),
        "row_shape": "pair",
        "separator": "\n\n",
        "campaign": False,
    }
    assert (later.origin.loads, later.origin.eval_loss, later.origin.campaign) == ((trained,), None, True)
    assert [each.origin for each in (await artifacts.list_(lab.core, lab.admin)).items] == [None, None, None]
