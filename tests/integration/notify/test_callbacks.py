"""Workers of a federation are told of new versions: signed, in order, and none holds up another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.receiver import Receiver, receiving
from tests.integration.notify.told import deliver, verified
from tests.unit.orchestrator.federating import Party, keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.errors import ForbiddenError, GoneError, InputError
from tunefleet.orchestrator.access import permissions
from tunefleet.orchestrator.federation import members, service, versions
from tunefleet.schemas.federated import MemberChange


async def told_at(lab: Lab, group: Party, worker: str, url: str | None) -> None:
    who = permissions.FederationActor(group.id)
    await members.change(lab.core, who, group.id, worker, MemberChange(callback_url=url))


async def publish(lab: Lab, group: Party, value: float) -> None:
    await group.upload("w1", value)
    await group.upload("w2", value + 1)
    await keep(lab.core)


async def test_a_worker_is_told_of_each_version_and_can_verify_who_says_so(
    lab: Lab, receiver: Receiver, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files", name="together")
    await told_at(lab, group, "w1", f"{receiver.url}/new?worker=1")
    await publish(lab, group, 1.0)
    await deliver(lab)
    (seen,) = receiver.seen
    assert seen.path == "/new?worker=1"
    assert verified(seen, group.made.callback_secret, lab.clock.wall)
    version = await group.version()
    assert (seen.json["event"], seen.json["title"]) == ("published", "together: version 1")
    assert seen.json["url"] == f"https://fleet.example.org/api/v1/federations/{group.id}/versions/1"
    assert seen.json["federation"] == {
        "id": group.id, "number": group.made.number, "name": "together", "worker": "w1", "version": 1, "round": 1,
        "equals": None, "sha256": version.sha256, "archive_sha256": version.archive_sha256,
        "contributors": ["w1", "w2"],
    }  # fmt: skip
    await publish(lab, group, 10.0)
    await versions.rollback(lab.core, lab.admin, group.id, 1)
    await deliver(lab)
    news: list[dict[str, Any]] = [each.json["federation"] for each in receiver.taken]
    assert [(each["version"], each["equals"]) for each in news] == [(1, None), (2, None), (3, 1)]


async def test_a_worker_that_is_away_is_told_later_and_holds_up_nobody(
    lab: Lab, receiver: Receiver, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    with receiving() as away:
        port = away.port
    await told_at(lab, group, "w1", f"http://127.0.0.1:{port}/")
    await told_at(lab, group, "w2", receiver.url)
    await publish(lab, group, 1.0)
    told = await deliver(lab)
    assert {each.channel_id: each.state for each in told} == {f"{group.id}/w1": "waiting", f"{group.id}/w2": "sent"}
    lab.clock.advance(6.0)
    with receiving(port) as back:
        await deliver(lab)
        assert [each.json["federation"]["worker"] for each in back.taken] == ["w1"]
        assert verified(back.taken[0], group.made.callback_secret, lab.clock.wall)
    assert len(receiver.seen) == 1


async def test_a_worker_may_move_and_may_be_left_alone(lab: Lab, receiver: Receiver, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await told_at(lab, group, "w1", "http://127.0.0.1:1/")
    await publish(lab, group, 1.0)
    await deliver(lab)
    await told_at(lab, group, "w1", receiver.url)
    await deliver(lab)
    assert len(receiver.taken) == 1, "what waited goes to its new address"
    receiver.status = 503
    await publish(lab, group, 5.0)
    await deliver(lab)
    await told_at(lab, group, "w1", None)
    await publish(lab, group, 9.0)
    told = await deliver(lab)
    assert (told[-1].state, told[-1].error) == ("failed", "The worker removed its callback URL.")
    assert len(told) == 2


async def test_what_waits_for_a_removed_federation_is_given_up(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await told_at(lab, group, "w1", "http://127.0.0.1:1/")
    await publish(lab, group, 1.0)
    await service.cancel(lab.core, lab.admin, group.id)
    await service.remove(lab.core, lab.admin, group.id)
    (told,) = await deliver(lab)
    assert (told.state, told.error) == ("failed", "The federation was removed.")


async def test_an_address_that_may_not_be_reached_is_not_tried_again(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await told_at(lab, group, "w1", "http://169.254.169.254/latest/")
    await publish(lab, group, 1.0)
    (told,) = await deliver(lab)
    assert told.state == "failed"
    assert told.to == "http://169.254.169.254/…"


async def test_who_may_not_take_part_is_not_told(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", participants=["a", "b"])
    with pytest.raises(ForbiddenError, match="x is not a participant"):
        await told_at(lab, group, "x", "https://example.org")
    with pytest.raises(InputError, match="The callback_url must start with"):
        await told_at(lab, group, "a", "ftp://example.org")
    await told_at(lab, group, "a", "https://example.org/secret")
    (member,) = await members.list_(lab.core, lab.admin, group.id)
    assert (member.worker, member.callback_url) == ("a", "https://example.org/…")
    await service.cancel(lab.core, lab.admin, group.id)
    with pytest.raises(GoneError):
        await told_at(lab, group, "a", "https://example.org")


async def test_the_secret_may_be_the_makers_own(lab: Lab, receiver: Receiver, tmp_path: Path) -> None:
    own = "whsec_" + "A" * 40
    group = await party(lab, tmp_path / "files", callback_secret=own)
    assert group.made.callback_secret == own
    assert "callback_secret" not in (await service.get(lab.core, lab.admin, group.id)).spec
    with pytest.raises(InputError, match="callback_secret is not valid"):
        await party(lab, tmp_path / "files", callback_secret="short")
