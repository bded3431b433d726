"""What the token of one worker reaches: its own uploads and chunks, versions and rounds; not what others have sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.unit.orchestrator.federating import Party, keep, party
from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.test_federation_attempts import fail_for
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, FederationActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import data_chunks, guide_progress, members, service, upload_guide, versions
from tunefleet.orchestrator.federation.chunk_files import ChunkFile
from tunefleet.orchestrator.federation.delegated_access import Signer
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import events_after
from tunefleet.orchestrator.federation.updates import uploads
from tunefleet.schemas.federated import ADAPTER_FILE, ClaimChunk, MemberChange, UpdateCreate

SIGN = Signer(b"s" * 32, "https://lab.example.org", 1_900_000_000)
DIGEST = "d" * 64
Action = Callable[[ServerContext, FederationCaller, str], Awaitable[object]]


async def send(core: ServerContext, who: FederationCaller, federation: str, worker: str) -> object:
    update = UpdateCreate(worker=worker, step=900, num_examples=1, config={}, sha256=DIGEST)
    return await core.read(lambda connection: uploads.expected(connection, who, federation, update))


ACTIONS: dict[str, Action] = {
    "close the round": upload_guide.aggregate,
    "send its own": lambda core, who, id_: send(core, who, id_, "w1"),
    "send for another": lambda core, who, id_: send(core, who, id_, "w2"),
    "its own chunk": lambda core, who, id_: data_chunks.get(core, who, id_, 0, None),
    "another's chunk": lambda core, who, id_: data_chunks.get(core, who, id_, 1, None),
    "a free chunk": lambda core, who, id_: data_chunks.get(core, who, id_, 2, None),
    "claim": lambda core, who, id_: data_chunks.claim(core, who, id_, ClaimChunk(worker_id="w1"), SIGN),
    "claim for another": lambda core, who, id_: data_chunks.claim(core, who, id_, ClaimChunk(worker_id="w2"), SIGN),
    "its own updates": lambda core, who, id_: service.list_updates(core, who, id_, worker="w1"),
    "another's updates": lambda core, who, id_: service.list_updates(core, who, id_, worker="w2"),
    "state": service.get,
    "rounds": service.list_rounds,
    "versions": versions.list_,
    "weights": lambda core, who, id_: versions.download_file(core, who, id_, None, ADAPTER_FILE),
}
LOOKING = {"state", "rounds", "versions", "weights"}
OWN = {"send its own", "its own chunk", "claim", "its own updates", "state", "rounds", "versions", "weights"}


async def started(lab: Lab, folder: Path, *, own_tokens: bool) -> Party:
    """A federation with an update of w1 and w2 each, whose chunks 0 and 1 they have."""
    group = await party(lab, folder, min_workers=3, own_tokens=own_tokens)
    row = await group.row()
    pieces = [ChunkFile(f"{number}" * 64, 10, 1) for number in range(3)]
    await lab.core.write(lambda connection: data_chunks.add(connection, row, pieces))
    for worker, value in (("w1", 1.0), ("w2", 2.0)):
        await data_chunks.claim(lab.core, lab.admin, group.id, ClaimChunk(worker_id=worker), SIGN)
        await group.upload(worker, value)
    return group


async def refusal(action: Action, core: ServerContext, who: FederationCaller, federation: str) -> ForbiddenError | None:
    try:
        await action(core, who, federation)
    except ForbiddenError as error:
        return error
    except (ConflictError, NotFoundError):
        pass  # there is no version yet: a caller that is refused does not get so far
    return None


@pytest.mark.parametrize(
    ("own_tokens", "who", "allowed"),
    [
        (True, "w1's own token", OWN),
        (True, "the shared token", LOOKING),
        (True, "a worker's key", LOOKING),
        (True, "its owner", set(ACTIONS)),
        (False, "w1's own token", OWN),
        (False, "the shared token", set(ACTIONS)),
        (False, "a worker's key", set(ACTIONS)),
        (False, "its owner", set(ACTIONS)),
    ],
)
async def test_a_workers_own_token_reaches_what_that_worker_needs(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_tokens: bool, who: str, allowed: set[str]
) -> None:
    monkeypatch.setattr(upload_guide, "AGGREGATION_S", 0.0)
    group = await started(lab, tmp_path / "files", own_tokens=own_tokens)
    asker: FederationCaller = {
        "w1's own token": FederationActor(group.id, worker="w1"),
        "the shared token": FederationActor(group.id),
        "a worker's key": Actor("k", "fleet", "worker"),
        "its owner": lab.admin,
    }[who]
    # Last, because it closes the round for what comes after.
    order = sorted(ACTIONS, key=lambda name: name == "close the round")
    refused = {name: await refusal(ACTIONS[name], lab.core, asker, group.id) for name in order}
    assert {name for name, error in refused.items() if error is None} == allowed
    assert [name for name, error in refused.items() if error is not None and not error.hint] == []
    closed = (await group.round()).status == "aggregating"
    assert closed == ("close the round" in allowed)


@pytest.mark.parametrize(
    ("own_tokens", "worker", "seen"),
    [(True, "w1", {"w1"}), (True, None, set()), (False, "w1", {"w1"}), (False, None, {"w1", "w2"})],
)
async def test_of_other_workers_a_token_sees_that_they_are_there(
    lab: Lab, tmp_path: Path, own_tokens: bool, worker: str | None, seen: set[str]
) -> None:
    group = await started(lab, tmp_path / "files", own_tokens=own_tokens)
    for name in ("w1", "w2"):
        change = MemberChange(callback_url="https://lab.example.org/adapters")
        await members.change(lab.core, lab.admin, group.id, name, change)
    who = FederationActor(group.id, worker=worker)
    listed = (await service.get(lab.core, who, group.id)).member_list
    assert listed == await members.list_(lab.core, who, group.id)
    assert {each.worker for each in listed} == {"w1", "w2"}
    for told in ("callback_url", "num_examples", "step"):
        assert {each.worker for each in listed if getattr(each, told)} == seen, told
    guides = (await guide_progress.job(lab.core, who, group.id)).workers
    assert {each.id for each in guides} == {"w1", "w2"}
    assert {each.id for each in guides if each.current_step} == seen
    everybodys = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert all(each.callback_url and each.num_examples for each in everybodys)


async def test_events_show_a_workers_own_token_nothing_of_what_others_sent(lab: Lab, tmp_path: Path) -> None:
    group = await started(lab, tmp_path / "files", own_tokens=True)

    async def seen(who: FederationCaller) -> dict[str, set[str]]:
        found = await events_after(lab.core, who, group.id, 0)
        updates = [event.data for event in found if event.kind == "federation.update"]
        return {str(data.get("worker")): set(data) for data in updates}

    everything = (await seen(lab.admin))["w2"]
    assert "num_examples" in everything
    assert await seen(FederationActor(group.id)) == {"None": everything & {"federation", "number", "round"}}
    own = await seen(FederationActor(group.id, worker="w1"))
    assert own == {"w1": (await seen(lab.admin))["w1"], "None": everything & {"federation", "number", "round"}}


async def test_a_workers_own_token_lists_its_own_updates_alone(lab: Lab, tmp_path: Path) -> None:
    group = await started(lab, tmp_path / "files", own_tokens=True)
    mine = FederationActor(group.id, worker="w1")
    listed = {who: (await service.list_updates(lab.core, who, group.id)).items for who in (mine, lab.admin)}
    assert [each.worker for each in listed[mine]] == ["w1"]
    assert sorted(each.worker for each in listed[lab.admin]) == ["w1", "w2"]


@pytest.mark.parametrize(
    ("own_tokens", "worker", "seen"),
    [(True, "w1", {"w1"}), (True, None, set()), (False, "w1", {"w1"}), (False, None, {"w1", "w2", "w3"})],
)
async def test_of_a_version_a_token_sees_what_its_worker_gave(
    lab: Lab, tmp_path: Path, own_tokens: bool, worker: str | None, seen: set[str]
) -> None:
    group = await party(lab, tmp_path / "files", min_workers=3, own_tokens=own_tokens)
    for name, value in (("w1", 1.0), ("w2", 2.0), ("w3", 3.0)):
        await group.upload(name, value)
    await keep(lab.core)
    whole = await versions.get(lab.core, lab.admin, group.id, 1)
    assert {each.worker for each in whole.contributions} == {"w1", "w2", "w3"}
    assert whole.report
    found = await versions.get(lab.core, FederationActor(group.id, worker=worker), group.id, 1)
    assert {each.worker for each in found.contributions} == seen
    assert bool(found.report) == (len(seen) == 3)
    assert found.files == whole.files


@pytest.mark.parametrize(
    ("own_tokens", "worker", "told"),
    [(True, "w1", False), (True, None, False), (False, "w1", False), (False, None, True)],
)
async def test_what_was_wrong_with_a_round_is_told_to_who_may_see_its_updates(
    lab: Lab, tmp_path: Path, own_tokens: bool, worker: str | None, told: bool
) -> None:
    group = await party(lab, tmp_path / "files", min_workers=2, own_tokens=own_tokens)
    who, error = FederationActor(group.id, worker=worker), "It is broken."
    await group.upload("w1", 1.0)
    await fail_for(group, await group.upload("w2", 2.0))
    for asker, sees in ((who, told), (lab.admin, True)):
        events = await events_after(lab.core, asker, group.id, 0)
        (failed,) = [event.data for event in events if event.kind == "federation.round_failed"]
        assert (failed["reason"], "error" in failed) == ("update_refused", sees)
        views = (
            (await service.list_rounds(lab.core, asker, group.id)).items,
            (await service.get(lab.core, asker, group.id)).rounds,
        )
        for listed in views:
            assert any(error in (each.why or "") for each in listed) == sees


async def test_a_file_that_another_worker_sent_is_nobody_elses(lab: Lab, tmp_path: Path) -> None:
    group = await started(lab, tmp_path / "files", own_tokens=True)
    row = await group.row()
    entry = await lab.upload(lab.admin, b"weights of w2")
    file = entry.digest, entry.size_bytes
    owners = {name: FederationActor(group.id, worker=name) for name in ("w1", "w2")}
    await uploads.stored_file(lab.core, owners["w2"], row, *file)
    sent = {name: (await uploads.expect_file(lab.core, who, group.id, *file))[1] for name, who in owners.items()}
    assert sent == {"w1": False, "w2": True}
    body = UpdateCreate(worker="w1", step=900, num_examples=1, config={}, sha256=entry.digest)
    with pytest.raises(ArtifactError, match="was not uploaded"):
        await uploads.take_update(lab.core, owners["w1"], group.id, body)
