"""What a version consists of and says of itself; the way back to an earlier one; what is kept and for how long."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.orchestrator.federating import A, Party, keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.artifacts import FolderStore, Link
from tunefleet.db.federations import federation_versions
from tunefleet.db.repositories import artifacts as rows
from tunefleet.db.repositories import events
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.orchestrator.access import permissions
from tunefleet.orchestrator.federation import adapter_files, service, versions
from tunefleet.orchestrator.federation.adapter_files import archived, with_archive
from tunefleet.orchestrator.federation.versions import PendingLookups
from tunefleet.orchestrator.storage import artifacts, garbage_collection
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import Losses, VersionFile


async def published(lab: Lab, folder: Path, count: int = 1, **spec: object) -> Party:
    """A federation with some versions."""
    group = await party(lab, folder, **spec)
    for number in range(count):
        await one_more(lab, group, float(number))
    return group


async def one_more(lab: Lab, group: Party, value: float) -> None:
    before = (await group.row()).version
    await group.upload("w1", 1.0 + value, num_examples=1)
    await group.upload("w2", 4.0 + value, num_examples=2)
    await keep(lab.core)
    assert (await group.row()).version == before + 1


async def test_a_version_says_who_gave_what_and_what_came_of_it(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", strategy={"name": "fedavg_exact"})
    await group.upload("w1", 1.0, num_examples=1, losses=Losses(before=3.0, after=2.0), base_version=0)
    await group.upload("w2", 4.0, num_examples=3, losses=Losses(before=5.0, after=1.0))
    await keep(lab.core)
    version = await group.version()
    assert (version.strategy, version.round, version.equals, version.num_examples) == ("fedavg_exact", 1, None, 4)
    assert [(each.worker, each.weight, each.base_version) for each in version.contributions] == [
        ("w1", 0.25, 0), ("w2", 0.75, None)
    ]  # fmt: skip
    assert (version.losses.before, version.losses.after, version.loss) == (4.5, 1.25, 1.25)
    assert all(each.norm is not None and each.norm > 0 for each in version.contributions)
    assert version.report["layers"]["layer"]["error"] == pytest.approx(0.0, abs=1e-6)
    (listed,) = (await versions.list_(lab.core, lab.admin, group.id)).items
    assert listed.truncation_error == version.truncation_error == version.report["error"]
    (stored,) = (await artifacts.list_(lab.core, lab.admin, kind="adapter")).items
    assert (stored.id, stored.name, stored.metadata["version"]) == (version.artifact_id, f"{group.id}-v1", 1)
    detail = await artifacts.get(lab.core, lab.admin, stored.id)
    assert [(each.path, each.digest) for each in detail.files] == [(each.path, each.sha256) for each in version.files]


async def test_who_is_left_out_by_the_strategy_is_named_with_the_reason(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", strategy={"name": "krum", "byzantine": 1}, min_workers=5)
    for number in range(4):
        await group.upload(f"w{number}", 1.0 + number / 100)
    await group.upload("poison", 1000.0)
    await keep(lab.core)
    version = await group.version()
    assert len(version.contributors) == 1
    assert "poison" not in version.contributors
    refused = {each.worker: each.reason for each in version.refused}
    assert set(refused) == {"w0", "w1", "w2", "w3", "poison"} - set(version.contributors)
    assert all(refused.values())
    states = {each.worker: (each.state, each.weight, each.reason) for each in await group.updates(1)}
    assert states["poison"] == ("aggregated", 0.0, refused["poison"])
    assert states[version.contributors[0]] == ("aggregated", 1.0, None)


class Far(FolderStore):
    """A store whose files are no files of this machine."""

    def source(self, digest: str, filename: str) -> Link:  # type: ignore[override]
        super().source(digest, filename)
        return Link(f"https://far.example.org/{digest}")


async def test_files_that_lie_elsewhere_are_fetched_for_the_average_and_not_kept(lab: Lab, tmp_path: Path) -> None:
    lab.core.blobs = Far(lab.core.settings.data_dir / "artifacts")
    group = await published(lab, tmp_path / "files", 2, strategy={"name": "fedadam", "server_lr": 0.1})
    assert [(await group.version(number)).contributors for number in (1, 2)] == [("w1", "w2")] * 2
    assert list((lab.core.settings.data_dir / "federation").iterdir()) == []


async def test_the_archive_has_the_files_at_its_root_and_is_always_the_same(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files")
    files = await group.archive()
    version = await group.version()
    assert sorted(files) == ["adapter_config.json", "adapter_model.safetensors"]
    assert hashlib.sha256(files["adapter_model.safetensors"]).hexdigest() == version.sha256
    assert json.loads(files["adapter_config.json"])["peft_type"] == "LORA"
    made = await group.packed()
    data = lab.core.blobs.read(made.digest)
    assert data[4:8] == b"\0\0\0\0", "no time in it"
    entries = [_entry(each) for each in version.files]
    again = archived(lab.core.blobs, entries[::-1])
    assert (again.digest, again.size_bytes) == (made.digest, made.size_bytes)
    assert len(gzip.decompress(data)) % 512 == 0


async def test_the_archive_is_made_when_somebody_asks_and_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def watched(*given: Any) -> FileEntry:
        made.append(1)
        return archived(*given)

    monkeypatch.setattr(adapter_files, "archived", watched)
    group = await published(lab, tmp_path / "files")
    assert ((await group.version()).archive_sha256, made) == (None, [])
    found = await asyncio.gather(*(group.packed() for _ in range(8)))
    assert ({each.digest for each in found}, len(made)) == ({found[0].digest}, 1)
    version = await group.version()
    assert (version.archive_sha256, version.archive_size_bytes) == (found[0].digest, found[0].size_bytes)
    await _collected(lab)
    assert lab.core.blobs.has(found[0].digest), "its version holds it"
    assert ((await group.packed()).digest, len(made)) == (found[0].digest, 1)


async def test_two_servers_that_make_one_archive_agree(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await published(lab, tmp_path / "files")
    both = threading.Barrier(2, timeout=20)

    def together(*given: Any) -> FileEntry:
        both.wait()
        return archived(*given)

    monkeypatch.setattr(adapter_files, "archived", together)
    # The locks of the other server are its own.
    other = replace(lab.core, _states={})
    row = await lab.core.read(partial(federation_versions.get, federation_seq=group.made.number, version=1))
    assert row is not None
    (_, one), (_, two) = await asyncio.gather(with_archive(lab.core, row), with_archive(other, row))
    assert (one.digest, one.size_bytes) == (two.digest, two.size_bytes)
    assert (await group.version()).archive_sha256 == one.digest


async def test_the_tokenizer_is_carried_into_every_version(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0, tokenizer={"tokenizer.json": b"{}", "chat_template.jinja": b"old"})
    await group.upload("w2", 2.0, tokenizer={"tokenizer.json": b"{}", "chat_template.jinja": b"new"})
    await keep(lab.core)
    await one_more(lab, group, 5.0)
    await one_more(lab, group, 6.0)
    for number in (1, 2, 3):
        files = await group.archive(number)
        assert files["chat_template.jinja"] == b"new", "of the newest update that had any"
        assert files["tokenizer.json"] == b"{}"


async def test_going_back_makes_a_version_that_names_the_one_it_equals(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files", 3)
    await group.upload("w1", 50.0)
    back = await versions.rollback(lab.core, lab.admin, group.id, 1)
    assert (back.version, back.equals, back.round) == (4, 1, None)
    first = await group.version(1)
    assert (back.sha256, back.archive_sha256, back.artifact_id) == (
        first.sha256, first.archive_sha256, first.artifact_id
    )  # fmt: skip
    np.testing.assert_array_equal((await group.values(4))[A], (await group.values(1))[A])
    abandoned = await group.round(4)
    assert (abandoned.status, abandoned.reason) == ("abandoned", "rolled_back")
    (put_aside,) = await group.updates(4)
    assert (put_aside.state, put_aside.reason) == ("discarded", "The federation was rolled back to version 1.")
    await one_more(lab, group, 60.0)
    made = await group.version(5)
    assert (made.round, made.equals, made.contributors) == (5, None, ("w1", "w2"))


async def test_going_back_restores_the_outer_optimizers_state(lab: Lab, tmp_path: Path) -> None:
    """The version after a rollback to 2 is bit for bit the one that followed 2."""
    group = await published(lab, tmp_path / "files", 3, strategy={"name": "fedadam", "server_lr": 0.1})
    states = {number: await _state(group, number) for number in (1, 2, 3)}
    assert states[2] is not None
    assert states[2] != states[3]
    await versions.rollback(lab.core, lab.admin, group.id, 2)
    assert await _state(group, 4) == states[2]
    # The third round once more, with the same numbers.
    await group.upload("w3", 1.0 + 2.0, num_examples=1)
    await group.upload("w4", 4.0 + 2.0, num_examples=2)
    await keep(lab.core)
    assert await _state(group, 5) == states[3]
    np.testing.assert_array_equal((await group.values(5))[A], (await group.values(3))[A])


async def test_only_a_version_that_is_there_and_not_the_newest_can_be_gone_back_to(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files")
    with pytest.raises(ConflictError, match="Version 1 is already the newest one"):
        await versions.rollback(lab.core, lab.admin, group.id, 1)
    with pytest.raises(NotFoundError, match="has no version 7; its newest is 1"):
        await versions.rollback(lab.core, lab.admin, group.id, 7)
    other = await lab.actor("other", "member")
    with pytest.raises(ForbiddenError, match="belongs to admin"):
        await versions.rollback(lab.core, other, group.id, 1)
    with pytest.raises(ForbiddenError, match="uploads, versions and chunks only"):
        await versions.rollback(lab.core, permissions.FederationActor(group.id), group.id, 1)


async def test_who_waits_for_a_version_hears_of_it_at_once(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    assert await versions.newest(lab.core, lab.admin, group.id) is None
    worker, number = permissions.FederationActor(group.id), str(group.made.number)
    waiting = asyncio.create_task(versions.newest(lab.core, worker, number, wait_s=60))
    await asyncio.sleep(0)
    await one_more(lab, group, 0.0)
    found = await asyncio.wait_for(waiting, 20)
    assert found is not None
    assert found.version == 1
    assert await versions.newest(lab.core, lab.admin, group.id, after=1) is None


async def test_a_crowd_that_waits_for_a_version_looks_together_and_each_for_himself_gives_up(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    worker, stranger = permissions.FederationActor(group.id), permissions.FederationActor("fed-000000000000")
    waiting = [asyncio.create_task(versions.newest(lab.core, worker, group.id, wait_s=60)) for _ in range(10)]
    refused = asyncio.create_task(versions.newest(lab.core, stranger, group.id, wait_s=60))
    await asyncio.sleep(0)
    assert len(lab.core.state(PendingLookups).newest) == 1
    waiting[0].cancel()
    with pytest.raises(ForbiddenError, match="valid for fed-000000000000 only"):
        await refused
    await one_more(lab, group, 0.0)
    found = await asyncio.wait_for(asyncio.gather(*waiting[1:]), 60)
    assert [each.version for each in found if each is not None] == [1] * 9
    assert waiting[0].cancelled()
    assert not lab.core.state(PendingLookups).newest


async def test_versions_are_listed_newest_first_page_by_page(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files", 3)
    page = await versions.list_(lab.core, lab.admin, group.id, limit=2)
    assert [each.version for each in page.items] == [3, 2]
    rest = await versions.list_(lab.core, lab.admin, group.id, limit=2, cursor=page.next_cursor)
    assert ([each.version for each in rest.items], rest.next_cursor) == ([1], None)


async def test_every_step_of_a_federation_is_an_event_of_its_own(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files")
    await published(lab, tmp_path / "others")
    read = partial(events.after, event_id=0, project="default", limit=100, federation_seq=group.made.number)
    found = await lab.core.read(read)
    assert [each.kind for each in found] == [
        "federation.created", "federation.running", "federation.update", "federation.update",
        "federation.round_closed", "federation.round_aggregated", "federation.version",
    ]  # fmt: skip
    news = json.loads(found[-1].data)
    assert (news["federation"], news["version"], news["contributors"]) == (group.id, 1, ["w1", "w2"])


async def test_files_of_versions_stay_and_those_of_settled_updates_go(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    replaced = (await group.upload("w1", 9.0, tokenizer={"tokenizer.json": b"{}"})).update.model_digest
    await one_more(lab, group, 0.0)
    counted = [each.model_digest for each in await group.updates(1)]
    open_ = (await group.upload("w1", 8.0, tokenizer={"tokenizer.json": b"{}"})).update.model_digest
    await _collected(lab)
    version, packed = await group.version(), await group.packed()
    there = await lab.files()
    assert not there & {replaced, *counted}
    assert {open_, packed.digest, *(each.sha256 for each in version.files)} <= there


async def test_what_a_round_has_used_up_goes_at_once(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    used = [(await group.upload(worker, value)).update.model_digest for worker, value in (("w1", 1.0), ("w2", 2.0))]
    shared = (await group.upload("w3", 2.0)).update.model_digest
    assert shared == used[1], "the next round still needs it"
    holders = [lab.admin.key_id]
    await lab.core.write(lambda connection: rows.unpin(connection, holders))
    await keep(lab.core)
    assert await lab.files() & set(used) == {shared}
    known = await lab.core.read(partial(rows.known, project="default", digests=[digest or "" for digest in used]))
    assert known == {shared}


async def test_a_version_outlives_the_removal_of_its_artifact(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files", strategy={"name": "diloco"})
    version, packed = await group.version(), await group.packed()
    await artifacts.remove(lab.core, lab.admin, version.artifact_id)
    await _collected(lab)
    state = await _state(group, 1)
    wanted = [version.sha256, packed.digest, *([] if state is None else [state])]
    assert all(lab.core.blobs.has(digest) for digest in wanted)


async def test_a_removed_federation_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    group = await published(lab, tmp_path / "files", 2)
    await versions.rollback(lab.core, lab.admin, group.id, 1)
    await group.upload("w1", 70.0)
    with pytest.raises(ConflictError, match="is running"):
        await service.remove(lab.core, lab.admin, group.id)
    await service.cancel(lab.core, lab.admin, group.id)
    await service.remove(lab.core, lab.admin, group.id)
    with pytest.raises(NotFoundError, match=r"Federation .* not found"):
        await service.get(lab.core, lab.admin, group.id)
    await _collected(lab)
    assert await lab.files() == set()
    assert (await artifacts.list_(lab.core, lab.admin)).items == ()
    read = partial(events.after, event_id=0, project="default", limit=100, federation_seq=group.made.number)
    assert await lab.core.read(read) == []


async def _collected(lab: Lab) -> None:
    """Let so much time pass that what nobody needs is collected."""
    lab.clock.advance(2 * artifacts.PIN_S)
    await garbage_collection.collect(lab.core)


async def _state(group: Party, number: int) -> str | None:
    read = partial(federation_versions.get, federation_seq=group.made.number, version=number)
    found = await group.lab.core.read(read)
    assert found is not None
    return found.state_digest


def _entry(file: VersionFile) -> FileEntry:
    return FileEntry(path=file.path, digest=file.sha256, size_bytes=file.size_bytes)
