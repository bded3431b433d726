"""Files that the parts of a spread task have exported become one file of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Node, Pipelines, stage
from tunefleet.errors import MachineError, NotFoundError
from tunefleet.orchestrator.access import projects
from tunefleet.orchestrator.storage import artifacts, signed_urls
from tunefleet.orchestrator.storage import result_files as results
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workflows import shard_merge
from tunefleet.schemas.api import FileEntry, WorkflowDetail
from tunefleet.schemas.projects import ProjectChange
from tunefleet.schemas.worker_link import Offer

BASE: Final = "http://server:8000/below"
LINES: Final = (b'{"n": 0}\n{"n": 1}\n', b'{"n": 2}', b"", b'{"n": 3}\n')
WHOLE: Final = b'{"n": 0}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n'
NAME: Final = "pairs.jsonl"


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


def spread(**more: Any) -> Node:
    items = {"type": "list", "items": ["a", "b", "c", "d"]}
    return stage("all", spec={"data": items, "parallel": {"enabled": True, "max_shards": 4}, **more})


async def export(pipe: Pipelines, offer: Offer, *, sent: bool = True) -> dict[str, Any]:
    """Send a part's file as its worker does, and return what the worker says of it."""
    number = offer.spec["shard"]["index"]
    url = f"{BASE}{signed_urls.path_of(offer.task_id, NAME)}?expires=1&signature=x"
    if sent:
        core, who = pipe.lab.core, await pipe.lab.attempt(offer.token)
        entry = await pipe.lab.upload(who, LINES[number])
        stored = FileEntry(path=NAME, digest=entry.digest, size_bytes=entry.size_bytes)
        url = str((await results.store(core, who, offer.task_id, stored, results.signer(core, BASE))).url)
    here = f"/results/{offer.task_id}/artifacts/{NAME}"
    records = LINES[number].count(b"{")
    return {
        "path": here, "worker_path": here, "relative_path": f"artifacts/{NAME}", "artifact_name": NAME,
        "uploaded": True, "url": url, "download_url": url, "record_count": records,
    }  # fmt: skip


async def end_all(pipe: Pipelines, flow: WorkflowDetail, **sent: Any) -> list[dict[str, Any]]:
    """End all parts, the last one first; returns their exports in order."""
    offers = await pipe.take()
    said = [await export(pipe, offer, **sent) for offer in offers]
    for offer, one in reversed(list(zip(offers, said, strict=True))):
        await pipe.end(offer, {"ok": True, "jsonl_export": one})
    assert {(await pipe.task(flow, offer.name)).status for offer in offers} == {"completed"}
    return said


async def fetched(pipe: Pipelines, url: str) -> bytes:
    """Return what a link leads to, for somebody without a key."""
    asked = httpx.URL(url)
    before, _, name = asked.path.partition("/files/")
    signature = Signature(int(asked.params["expires"]), asked.params["signature"])
    found = await results.find(pipe.lab.core, None, before.rpartition("/")[2], name, signature)
    return pipe.lab.core.blobs.read(found.digest)


async def test_the_whole_has_one_file_of_all_parts_in_order(pipe: Pipelines) -> None:
    core = pipe.lab.core
    after = stage("after", "all", spec={"data": {"items": ["${all.result.jsonl_export.url}"]}})
    flow = await pipe.submit(spread(), after)
    said = await end_all(pipe, flow)
    whole = await pipe.task(flow, "all")
    assert (whole.status, whole.why) == ("running", "4 shards: 4 completed; their files are being merged.")
    assert await shard_merge.run_once(core) == 0
    found = (await pipe.found(flow, "all"))["jsonl_export"]
    assert found["url"].startswith(f"{BASE}{signed_urls.path_of(whole.id, NAME)}?")
    assert await fetched(pipe, found["url"]) == WHOLE
    assert found == {
        "path": found["url"], "url": found["url"], "download_url": found["url"], "uploaded": True,
        "artifact_name": NAME, "relative_path": f"artifacts/{NAME}", "record_count": 4, "parts": said,
    }  # fmt: skip
    await pipe.run()
    assert pipe.specs["after"]["data"]["items"] == [found["url"]]
    assert (await pipe.see(flow)).status == "completed"
    (listed,) = (await artifacts.list_(core, pipe.lab.admin, task_id=whole.id)).items
    assert (listed.name, listed.size_bytes, listed.owner) == (NAME, len(WHOLE), whole.owner)
    assert await shard_merge.run_once(core) == 0, "there is nothing left to do"


async def test_a_quota_that_is_used_up_does_not_hold_the_whole_back(pipe: Pipelines) -> None:
    core = pipe.lab.core
    flow = await pipe.submit(spread())
    await end_all(pipe, flow)
    await projects.change(core, pipe.lab.admin, "default", ProjectChange(storage_bytes=1))
    assert await shard_merge.run_once(core) == 0
    assert await fetched(pipe, (await pipe.found(flow, "all"))["jsonl_export"]["url"]) == WHOLE


async def test_a_store_that_is_away_only_delays_the_end(pipe: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    core = pipe.lab.core
    first, second = await pipe.submit(spread()), await pipe.submit(spread(retry={"max_attempts": 1}))
    pipe.worker.want = {"light": 20}
    offers = await pipe.take()
    for offer in offers:
        await pipe.end(offer, {"jsonl_export": await export(pipe, offer)})
    real, calls = core.blobs.pieces, iter(range(100))

    def away(digest: str) -> Iterator[bytes]:
        if next(calls) == 0:
            raise MachineError("The disk cannot be read.")
        return real(digest)

    monkeypatch.setattr(core.blobs, "pieces", away)
    assert await shard_merge.run_once(core) == 1
    assert ((await pipe.task(first, "all")).status, (await pipe.task(second, "all")).status) == ("running", "completed")
    pipe.lab.clock.advance(shard_merge.pause_s(core))
    assert await shard_merge.run_once(core) == 0
    url = (await pipe.found(first, "all"))["jsonl_export"]["url"]
    assert await fetched(pipe, url) == WHOLE
    assert [path.name for path in core.blobs.uploads.iterdir()] == []


async def test_files_wait_for_room_without_being_copied_and_hold_up_nobody(
    pipe: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, clock = pipe.lab.core, pipe.lab.clock
    with monkeypatch.context() as larger:
        larger.setattr("tests.unit.orchestrator.test_joining.LINES", (b"{}" * 500, *LINES[1:]))
        large = await pipe.submit(spread())
        await end_all(pipe, large)
    small = await pipe.submit(spread())
    await end_all(pipe, small)
    free, looks, written = 500, [0], [0]
    expect, write = core.blobs.expect, shard_merge.Intake.write

    def look(size_bytes: int) -> None:
        looks[0] += 1
        expect(size_bytes)

    def count(self: Any, data: bytes) -> None:
        written[0] += len(data)
        write(self, data)

    monkeypatch.setattr("tunefleet.artifacts.blobs.disk_free", lambda _path: free)
    monkeypatch.setattr(core.blobs, "expect", look)
    monkeypatch.setattr(shard_merge.Intake, "write", count)
    assert await shard_merge.run_once(core) == 1
    assert ((await pipe.task(small, "all")).status, written, looks) == ("completed", [len(WHOLE)], [2])
    whole = await pipe.task(large, "all")
    assert whole.status == "running"
    why = whole.why or ""
    assert why.startswith("4 shards: 4 completed; their files wait for disk space: Not enough disk space at ")
    assert "500 bytes" in why
    pauses = []
    for tried in range(8):
        assert await shard_merge.run_once(core) == 1
        assert looks == [2 + tried], "before its time nothing is tried"
        pauses.append(shard_merge.pause_s(core))
        clock.advance(pauses[-1])
        assert await shard_merge.run_once(core) == 1
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    assert written == [len(WHOLE)], "nothing is copied for which there is no room"
    free = 10_000
    clock.advance(shard_merge.pause_s(core))
    assert await shard_merge.run_once(core) == 0
    assert (await pipe.task(large, "all")).status == "completed"
    assert shard_merge.pause_s(core) == shard_merge.SWEEP_S


async def test_what_was_cancelled_meanwhile_stays_cancelled(pipe: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    core = pipe.lab.core
    flow = await pipe.submit(spread())
    await end_all(pipe, flow)
    put = results.store

    async def cancelled(*args: Any, **options: Any) -> Any:
        await tasks.cancel(core, pipe.lab.admin, flow.tasks[0].id)
        return await put(*args, **options)

    monkeypatch.setattr(results, "store", cancelled)
    assert await shard_merge.run_once(core) == 0
    assert (await pipe.task(flow, "all")).status == "cancelled"


@pytest.mark.parametrize("lost", ["never sent", "gone from the store"])
async def test_files_that_are_not_here_are_left_to_the_parts(pipe: Pipelines, lost: str) -> None:
    after = stage("after", "all", spec={"data": {"items": ["${all.result.jsonl_export.url}"]}})
    flow = await pipe.submit(spread(), after)
    said = await end_all(pipe, flow, sent=lost != "never sent")
    if lost == "gone from the store":
        name = (await artifacts.list_(pipe.lab.core, pipe.lab.admin, kind="file")).items[0].id
        (file,) = (await artifacts.get(pipe.lab.core, pipe.lab.admin, name)).files
        pipe.lab.core.blobs.delete(file.digest)
        with pytest.raises(NotFoundError):
            pipe.lab.core.blobs.read(file.digest)
    assert await shard_merge.run_once(pipe.lab.core) == 0
    found = (await pipe.found(flow, "all"))["jsonl_export"]
    assert (found["parts"], "url" in found, "path" in found) == (said, False, False)
    error = (await pipe.task(flow, "after")).error or ""
    assert "Each of its 4 shards has one, such as ${all.result.jsonl_export.parts[0].url}" in error


async def test_a_large_file_is_never_whole_in_memory(pipe: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"text": "' + b"x" * (1 << 20) + b'"}\n'
    monkeypatch.setattr("tests.unit.orchestrator.test_joining.LINES", (lines * 5, lines * 3, b"", lines))
    written: list[int] = []
    real = shard_merge.Intake.write
    monkeypatch.setattr(shard_merge.Intake, "write", lambda self, data: written.append(len(data)) or real(self, data))
    flow = await pipe.submit(spread())
    await end_all(pipe, flow)
    assert await shard_merge.run_once(pipe.lab.core) == 0
    assert (sum(written), max(written) <= 1 << 20) == (9 * len(lines), True)
