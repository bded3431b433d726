"""Links to files of tasks: what they are signed over, whose address they have, and how they are renewed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.orchestrator.lab import TRAIN, Lab
from tests.unit.orchestrator.test_quotas import member
from tunefleet.artifacts import manifest_digest
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts as artifact_rows
from tunefleet.errors import ForbiddenError, NotFoundError
from tunefleet.orchestrator.storage import artifacts, signed_urls
from tunefleet.orchestrator.storage import result_files as results
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.schemas.api import ArtifactCreate, FileEntry
from tunefleet.schemas.worker_guide import ResultEnvelope

PUBLIC = "https://ai.example.org/fleet"


async def publish(lab: Lab, task_id: str, name: str, data: bytes) -> str:
    """Give a task a file; returns its digest."""
    entry = replace_path(await lab.upload(lab.admin, data), name)
    await results.store(lab.core, lab.admin, task_id, entry, results.signer(lab.core, "http://here"))
    return hashlib.sha256(data).hexdigest()


def replace_path(entry: FileEntry, name: str) -> FileEntry:
    return entry.model_copy(update={"path": name})


def signature_of(url: str) -> Signature:
    query = parse_qs(urlsplit(url).query)
    return Signature(int(query["expires"][0]), query["signature"][0])


async def link_of(lab: Lab, task_id: str, name: str, base: str = "http://here:8000/") -> str:
    found = await results.files(lab.core, lab.admin, task_id, results.signer(lab.core, base))
    return next(file.url for file in found.files if file.name == name)


async def test_a_link_has_the_public_address_else_that_of_the_request(lab: Lab) -> None:
    task_id = await lab.submit(TRAIN)
    await publish(lab, task_id, "a.bin", b"one")
    assert (await link_of(lab, task_id, "a.bin")).startswith(f"http://here:8000/api/v1/results/{task_id}/files/a.bin?")
    lab.core.settings = lab.core.settings.model_copy(update={"public_base_url": f"{PUBLIC}/"})
    url = await link_of(lab, task_id, "a.bin")
    assert url.startswith(f"{PUBLIC}/api/v1/results/{task_id}/files/a.bin?")
    # What stands before the path is the proxy's business: the link is good all the same.
    assert await results.find(lab.core, None, task_id, "a.bin", signature_of(url))


async def test_a_link_is_good_for_one_file_as_it_is_and_for_a_while(lab: Lab) -> None:
    task_id, other = await lab.submit(TRAIN), await lab.submit(TRAIN)
    for owner in (task_id, other):
        await publish(lab, owner, "a.bin", b"one")
        await publish(lab, owner, "b.bin", b"one")
    given = signature_of(await link_of(lab, task_id, "a.bin"))
    assert (await results.find(lab.core, None, task_id, "a.bin", given)).digest == hashlib.sha256(b"one").hexdigest()
    for owner, name in ((task_id, "b.bin"), (other, "a.bin")):
        with pytest.raises(ForbiddenError, match="not signed by this server"):
            await results.find(lab.core, None, owner, name, given)
    with pytest.raises(ForbiddenError):
        await results.find(lab.core, None, task_id, "a.bin", replace(given, expires=given.expires + 1))
    with pytest.raises(NotFoundError):
        await results.find(lab.core, None, task_id, "c.bin", given)
    await publish(lab, task_id, "a.bin", b"two")
    with pytest.raises(ForbiddenError, match="replaced"):
        await results.find(lab.core, None, task_id, "a.bin", given)
    fresh = signature_of(await link_of(lab, task_id, "a.bin"))
    lab.clock.advance(lab.core.settings.links_last_s + 1)
    with pytest.raises(ForbiddenError, match="expired"):
        await results.find(lab.core, None, task_id, "a.bin", fresh)


async def test_a_link_is_good_for_who_is_logged_in_to_another_project(lab: Lab) -> None:
    task_id, stranger = await lab.submit(TRAIN), await member(lab, "red")
    digest = await publish(lab, task_id, "a.bin", b"one")
    given = signature_of(await link_of(lab, task_id, "a.bin"))
    assert (await results.find(lab.core, stranger, task_id, "a.bin", given)).digest == digest
    with pytest.raises(ForbiddenError):
        await results.find(lab.core, stranger, task_id, "a.bin", replace(given, expires=given.expires + 1))
    with pytest.raises(NotFoundError):
        await results.find(lab.core, stranger, task_id, "a.bin", None)


async def test_the_links_of_a_result_are_renewed_when_it_is_read(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    await publish(lab, task_id, "final_lora.tar.gz", b"archive")
    old = await link_of(lab, task_id, "final_lora.tar.gz", "http://as-the-worker-knows-it:8000")
    foreign = f"https://else.example/api/v1/results/task-000000000000/files/x?{urlsplit(old).query}"
    result = {"final_lora_archive_url": old, "more": [{"url": old}], "foreign": foreign, "text": "signature= x"}
    await worker.finish(offer.token, result=result)
    lab.clock.advance(30 * 86_400)
    stored = (await lab.task(task_id)).result
    assert stored is not None
    assert stored["result"] == result, "what is stored stays as it was"
    read = await results.envelope(lab.core, lab.admin, task_id, results.signer(lab.core, "http://here"))
    url = read["result"]["final_lora_archive_url"]
    assert url == read["result"]["more"][0]["url"]
    assert url.startswith("http://here/api/v1/results/")
    assert await results.find(lab.core, None, task_id, "final_lora.tar.gz", signature_of(url))
    assert (read["result"]["foreign"], read["result"]["text"]) == (foreign, "signature= x")


async def test_files_of_folders_are_named_with_their_folder(lab: Lab) -> None:
    task_id = await lab.submit(TRAIN)
    entry = replace_path(await lab.upload(lab.admin, b"{}"), "adapter_config.json")
    body = ArtifactCreate(name="final_lora", kind="adapter", files=(entry,), digest=manifest_digest([entry]))
    await artifacts.publish(lab.core, lab.admin, body, task_id=task_id)
    found = await results.files(lab.core, lab.admin, task_id, results.signer(lab.core, "http://here"))
    assert [file.name for file in found.files] == ["final_lora/adapter_config.json", "manifest.json"]
    url = found.files[0].url
    assert urlsplit(url).path == signed_urls.path_of(task_id, "final_lora/adapter_config.json")
    assert await results.find(lab.core, None, task_id, "final_lora/adapter_config.json", signature_of(url))


@pytest.mark.parametrize("own", [{}, {"loss": 0.5}], ids=["none", "its own"])
async def test_a_result_brought_before_the_end_stays_unless_the_end_brings_one(lab: Lab, own: dict[str, float]) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()
    early = ResultEnvelope(task_id=task_id, result={"loss": 0.9}, metadata={"by": "hand"})
    await results.post(lab.core, await lab.attempt(offer.token), early)
    await worker.finish(offer.token, result=own)
    task = await lab.task(task_id)
    assert task.status == "completed"
    assert task.result is not None
    assert task.result["result"] == (own or {"loss": 0.9})
    assert ("by" in task.result["metadata"]) == (not own)


async def test_a_task_of_very_many_files_has_them_all(lab: Lab) -> None:
    task_id, many = await lab.submit(TRAIN), 1100
    entry = await lab.upload(lab.admin, b"one")
    given = {"project": "default", "kind": "file", "task_id": task_id, "owner": "admin", "created_at": lab.clock.wall}
    about = {"digest": entry.digest, "size_bytes": 3, "file_count": 1, "attempt_id": None}

    def fill(connection: Connection) -> None:
        for at in range(many):
            row = {"id": f"art-{at}", "name": f"f{at}", "metadata": '{"single_file": true}', **given, **about}
            artifact_rows.insert_one(connection, row, [(f"f{at}", entry.digest, 3)])

    await lab.core.write(fill)
    sign = results.signer(lab.core, "http://here")
    listed = {file.name for file in (await results.files(lab.core, lab.admin, task_id, sign)).files}
    assert listed == {f"f{at}" for at in range(many)} | {"manifest.json"}
    assert (await results.find(lab.core, lab.admin, task_id, "f0", None)).digest == entry.digest
    listing = await results.find(lab.core, lab.admin, task_id, "manifest.json", None)
    assert b'"f0"' in (listing.body or b"")
