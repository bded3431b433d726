"""A closed round is worked on once, by whoever holds it, and goes on wherever a killed server has left it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.orchestrator.federating import CONFIG, A, B, Party, adapter, keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.artifacts import FolderStore
from tunefleet.db import Connection, Database
from tunefleet.db.federations import federation_versions, rounds
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import NotFoundError
from tunefleet.federation.aggregation import strategy
from tunefleet.federation.floats import Array
from tunefleet.orchestrator.access import permissions
from tunefleet.orchestrator.context import Clock, ServerContext
from tunefleet.orchestrator.federation import (
    adapter_files,
    aggregation,
    members,
    service,
    version_publisher,
    versions,
)
from tunefleet.orchestrator.federation import round_scheduler as keeping
from tunefleet.orchestrator.federation.aggregation import AggregationInput
from tunefleet.orchestrator.federation.round_scheduler import LEASE_S, MAX_CRASHES, RoundScheduler, pause_s
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.schemas.federated import ADAPTER_FILE, MemberChange
from tunefleet.settings import ServerSettings


@asynccontextmanager
async def another(lab: Lab, folder: Path) -> AsyncIterator[ServerContext]:
    """A second service on the lab's database and files, as another server has it."""
    signals = PubSub()
    database = Database.open(
        lab.core.settings.data_dir / "tunefleet.db",
        synchronous="NORMAL",
        on_wake=lambda topics: signals.notify(*topics),
    )
    clock = Clock(lambda: lab.clock.wall, lambda: lab.clock.monotonic)
    blobs = FolderStore(lab.core.settings.data_dir / "artifacts")
    try:
        yield ServerContext(ServerSettings(data=folder), database, blobs, signals, lab.core.secret, clock)
    finally:
        signals.close()
        database.close()


async def closed(lab: Lab, folder: Path, **spec: object) -> Party:
    """A federation whose first round waits to be aggregated."""
    group = await party(lab, folder, **spec)
    await group.upload("w1", 1.0, num_examples=1)
    await group.upload("w2", 4.0, num_examples=2)
    return group


async def claimed(lab: Lab, group: Party, holder: str = "the killed one") -> RoundRow:
    now = lab.clock.wall
    row = await group.round()
    taken = await lab.core.write(partial(rounds.claim, row=row, holder=holder, now=now, until=now + LEASE_S))
    assert taken is not None
    return taken


async def looked_at(lab: Lab, taken: RoundRow) -> AggregationInput:
    work = await lab.core.read(partial(aggregation.load_input, current=taken))
    assert work is not None
    return work


async def aggregated(lab: Lab, group: Party, taken: RoundRow) -> RoundRow:
    """Come as far as a server that is killed before it publishes."""
    assert taken.holder is not None
    folder = adapter_files.work_folder(lab.core, taken.holder)
    work = await looked_at(lab, taken)
    moved = await aggregation.run(lab.core, work, folder, taken.holder)
    assert moved is not None
    assert moved.status == "publishing"
    return moved


async def versions_of(lab: Lab, group: Party) -> list[int | None]:
    found = await lab.core.read(partial(federation_versions.page, federation_seq=group.made.number, limit=100))
    return [each.round for each in found]


async def test_the_average_is_weighted_by_examples(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    await keep(lab.core)
    for values in (await group.values()).values():
        np.testing.assert_allclose(values, 3.0)
    version = await group.version()
    assert {each.worker: each.weight for each in version.contributions} == {
        "w1": pytest.approx(1 / 3), "w2": pytest.approx(2 / 3)
    }  # fmt: skip
    assert (version.version, version.round, version.strategy, version.num_examples) == (1, 1, "fedavg", 3)
    assert (await group.round(1)).version == 1
    assert (await group.round()).number == 2


async def test_of_two_servers_one_aggregates(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    async with another(lab, tmp_path / "other") as other:
        keepers = [RoundScheduler(lab.core), RoundScheduler(other)]
        for _ in range(5):
            await group.upload("w1", np.random.default_rng(len(group.steps)).random() + group.steps["w1"])
            await group.upload("w2", 2.0 + group.steps["w2"], core=other)
            await asyncio.gather(*(keeper.start_due() for keeper in keepers))
            await asyncio.gather(*(keeper.drain() for keeper in keepers))
        for keeper in keepers:
            await keeper.close()
    found = await versions_of(lab, group)
    assert found == sorted({number for number in found if number is not None}, reverse=True), "each round made one"
    assert found[-1] == 1
    for number in range(1, len(found) + 1):
        assert (await group.round(number)).tries == 1, "nobody took what another one had"


async def test_a_claim_is_taken_by_one_and_kept_until_its_lease_ends(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    row, now = await group.round(), lab.clock.wall
    first, second = await asyncio.gather(
        *(
            lab.core.write(partial(rounds.claim, row=row, holder=name, now=now, until=now + LEASE_S))
            for name in ("one", "two")
        )
    )
    assert (first is None) != (second is None)
    lab.clock.advance(LEASE_S - 1)
    await keep(lab.core)
    assert await versions_of(lab, group) == [], "it may still be at work"
    lab.clock.advance(1)
    await keep(lab.core)
    assert await versions_of(lab, group) == [1]
    assert (await group.round(1)).tries == 2


async def test_who_waits_at_another_server_gets_the_version_and_its_file(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "LOOK_S", 0.01)
    group = await closed(lab, tmp_path / "files")
    async with another(lab, tmp_path / "other") as other:
        waiting = asyncio.create_task(versions.newest(other, lab.admin, group.id, wait_s=60))
        await keep(lab.core)
        found = await asyncio.wait_for(waiting, 60)
        assert found is not None
        assert found.version == 1
        file = versions.file_of(found, ADAPTER_FILE)
        assert hashlib.sha256(other.blobs.read(file.digest)).hexdigest() == file.digest
        assert await versions.newest(other, lab.admin, group.id, after=1) is None


async def test_a_server_killed_while_it_aggregates_is_taken_over(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    taken = await claimed(lab, group)
    work = await looked_at(lab, taken)
    lab.clock.advance(LEASE_S)
    async with another(lab, tmp_path / "other") as other:
        await keep(other)
    assert await versions_of(lab, group) == [1]
    # It was not dead after all, and comes back with what it has: nobody wants that any more.
    assert await aggregation.run(lab.core, work, tmp_path / "late", "the killed one") is None
    assert await versions_of(lab, group) == [1]


async def test_a_server_killed_before_it_publishes_is_taken_over_without_averaging_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await closed(lab, tmp_path / "files")
    moved = await aggregated(lab, group, await claimed(lab, group))
    lab.clock.advance(LEASE_S)
    monkeypatch.setattr(aggregation, "run", None)  # would fail if it were called
    await keep(lab.core)
    assert await versions_of(lab, group) == [1]
    # The one that was killed publishes too, after all.
    work = await looked_at(lab, moved)
    assert await version_publisher.run(lab.core, work, "the killed one") is None
    assert await versions_of(lab, group) == [1]
    assert (await group.row()).version == 1


async def test_a_server_keeps_what_it_works_on_and_lets_the_next_one_have_it_when_it_stops(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await closed(lab, tmp_path / "files")
    begun, gate = threading.Event(), threading.Event()
    average = strategy.aggregate

    def slow(*given: object, **more: object) -> object:
        begun.set()
        gate.wait(20)
        return average(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(strategy, "aggregate", slow)
    monkeypatch.setattr(keeping, "RENEW_S", 0.01)
    keeper = RoundScheduler(lab.core)
    await keeper.start_due()
    await asyncio.to_thread(begun.wait, 20)
    lab.clock.advance(LEASE_S - 1)
    while (await group.round()).lease_until < lab.clock.wall + LEASE_S:
        await asyncio.sleep(0.01)  # it is renewed while the work goes on
    await keeper.close()
    gate.set()
    left = await group.round()
    assert (left.status, left.holder, left.lease_until) == ("aggregating", None, 0.0)
    monkeypatch.setattr(strategy, "aggregate", average)
    await keep(lab.core)
    assert await versions_of(lab, group) == [1]


async def test_one_update_that_cannot_be_averaged_is_named_and_the_others_count_in_the_next_round(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files", min_workers=3)
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    # It got past the check, which the server's own code makes: what is checked again is the file.
    broken = adapter(1.0)
    broken[A][0, 0] = np.nan
    await _upload_unchecked(group, "w3", broken)
    await keep(lab.core)
    failed = await group.round(1)
    assert (failed.status, failed.reason) == ("failed", "update_refused")
    assert failed.error is not None
    assert "w3" in failed.error
    assert A in failed.error
    rejected = (await group.updates(1))[-1]
    assert (rejected.worker, rejected.state, rejected.reason) == ("w3", "rejected", failed.error)
    assert [(each.worker, each.state) for each in await group.updates(2)] == [("w1", "counted"), ("w2", "counted")]
    await group.upload("w3", 3.0)
    await keep(lab.core)
    assert (await group.version()).contributors == ("w1", "w2", "w3")
    shown = (await service.get(lab.core, lab.admin, group.id)).rounds
    assert [(each.number, each.why) for each in shown if each.number == 1] == [(1, failed.error)]


async def test_a_full_disk_is_waited_for(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = await closed(lab, tmp_path / "files")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(strategy, "aggregate", full)
        for tries in range(1, 9):
            await keep(lab.core)
            waiting = await group.round()
            assert (waiting.status, waiting.tries) == ("aggregating", tries)
            assert waiting.lease_until == lab.clock.wall + pause_s(tries)
            lab.clock.advance(pause_s(tries))
        detail = await service.get(lab.core, lab.admin, group.id)
        assert detail.why == "Retrying: [Errno 28] No space left on device"
    await keep(lab.core)
    assert (await group.version()).contributors == ("w1", "w2")


async def test_a_fault_of_the_server_ends_the_round_and_says_so(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await closed(lab, tmp_path / "files")

    def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(strategy, "aggregate", faulty)
        for tries in range(1, MAX_CRASHES + 1):
            await keep(lab.core)
            lab.clock.advance(pause_s(tries))
    failed = await group.round(1)
    assert (failed.status, failed.reason) == ("failed", "server_fault")
    assert failed.error == "Internal server error (ZeroDivisionError); see the server log."
    assert [(each.state, each.reason) for each in await group.updates(1)] == [
        ("discarded", f"Round 1 failed: {failed.error}")
    ] * 2
    await group.upload("w1", 1.0)
    assert (await group.upload("w2", 4.0)).closes, "the same weights may come again"
    await keep(lab.core)
    assert await versions_of(lab, group) == [2]


async def test_a_round_that_fails_when_it_is_published_lets_go_of_what_it_made(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await closed(lab, tmp_path / "files")
    # Callbacks say what the archive is: it is made before.
    worker = MemberChange(callback_url="https://worker.example.org/new")
    await members.change(lab.core, permissions.FederationActor(group.id), group.id, "w1", worker)
    moved = await aggregated(lab, group, await claimed(lab, group))
    assert moved.result is not None
    made = [each.digest for each in aggregation.AggregationResult.load(moved.result).files]
    lab.clock.advance(LEASE_S)

    def lost(*_: object) -> None:
        raise NotFoundError("A file of the round is not in the store.")

    with monkeypatch.context() as patched:
        patched.setattr(version_publisher, "archived", lost)
        await keep(lab.core)
    assert (await group.round(1)).status == "failed"
    free = await lab.core.read(partial(artifacts.unreferenced, digests=made, now=lab.clock.wall))
    assert sorted(free) == sorted(made)


async def test_a_round_that_is_rolled_back_meanwhile_makes_no_version(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    taken = await claimed(lab, group)
    work = await looked_at(lab, taken)
    await service.cancel(lab.core, lab.admin, group.id)
    assert await aggregation.run(lab.core, work, tmp_path / "work", "the killed one") is None
    assert await versions_of(lab, group) == []


async def test_nothing_is_left_lying_around(lab: Lab, tmp_path: Path) -> None:
    group = await closed(lab, tmp_path / "files")
    killed = adapter_files.work_folder(lab.core, "hold-killed")
    killed.mkdir(parents=True)
    (killed / "part").write_bytes(b"x")
    held = adapter_files.work_folder(lab.core, "hold-alive")
    held.mkdir()
    row, now = await group.round(), lab.clock.wall
    await lab.core.write(partial(rounds.claim, row=row, holder="hold-alive", now=now, until=now + LEASE_S))
    keeper = RoundScheduler(lab.core)
    await keeper._sweep()
    assert [each.name for each in held.parent.iterdir()] == ["hold-alive"]
    lab.clock.advance(LEASE_S)
    await keeper.start_due()
    await keeper.drain()
    await keeper.close()
    assert await versions_of(lab, group) == [1]
    assert list(held.parent.iterdir()) == [], "neither its own nor that of whom it took the round from"


async def test_the_loop_wakes_for_an_upload_and_for_a_deadline(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", participants=["a", "b", "c"], deadline_s=20)
    keeper = RoundScheduler(lab.core)
    assert await keeper.start_due() == 30.0
    await group.upload("a", 1.0)
    await group.upload("b", 1.5)
    assert await keeper.start_due() == 20.0
    lab.clock.advance(15)
    assert await keeper.start_due() == 5.0
    loop = asyncio.create_task(keeper.run_once())
    await asyncio.sleep(0)
    await group.upload("c", 2.0)
    await asyncio.wait_for(loop, 20)
    await keeper.start_due()
    await keeper.drain()
    await keeper.close()
    assert await versions_of(lab, group) == [1]


async def test_a_federation_that_cannot_be_read_holds_up_no_other(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = await party(lab, tmp_path / "broken", participants=["a", "b", "c"], deadline_s=20)
    group = await closed(lab, tmp_path / "files")
    await broken.upload("a", 1.0)
    await broken.upload("b", 1.0)
    lab.clock.advance(21)
    tick, seq = keeping.round_operations.tick, (await broken.row()).seq

    def fails(connection: Connection, **known: Any) -> None:
        if known["seq"] == seq:
            raise ValueError("a spec of another version")
        tick(connection, **known)

    monkeypatch.setattr(keeping.round_operations, "tick", fails)
    keeper = RoundScheduler(lab.core)
    assert await keeper.start_due() <= keeping.LOOK_S
    await keeper.drain()
    assert await versions_of(lab, group) == [1]
    assert f"Checking federation {seq} failed; retrying later." in caplog.text


async def _upload_unchecked(group: Party, worker: str, values: dict[str, Array]) -> None:
    core = group.lab.core
    head: dict[str, object] = {}
    body = b""
    for name in (A, B):
        data = values[name].tobytes()
        head[name] = {"dtype": "F32", "shape": values[name].shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    entry = await group.lab.upload(group.lab.admin, len(text).to_bytes(8, "little") + text + body)
    row = await group.row()
    arrived = acceptance.ValidatedUpdate(
        worker=worker, step=1, num_examples=1, model_digest=entry.digest, size_bytes=entry.size_bytes,
        values_digest="v", config=json.dumps(CONFIG), checked_against=row.contract, contract=row.contract or "",
    )  # fmt: skip
    await core.write(lambda connection: acceptance.accept(connection, row, arrived, core.clock.wall()))
