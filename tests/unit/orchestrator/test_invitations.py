"""Invitations: one token, one machine, one key; and what they bind."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from tests.unit.orchestrator.lab import FakeWorker, Lab, capabilities
from tests.unit.orchestrator.test_quotas import member
from tunefleet.db import Connection
from tunefleet.db.tables.operations import invitations as table
from tunefleet.errors import AuthError, ConflictError, ForbiddenError, NotFoundError, TooManyError
from tunefleet.orchestrator.access import api_keys, projects
from tunefleet.orchestrator.access.login_throttle import BURST
from tunefleet.orchestrator.workers import enrollment, workers
from tunefleet.schemas.enrollment import InvitationCreate, InvitationCreated, JoinReply, JoinRequest
from tunefleet.schemas.projects import ProjectChange

URL = "https://fleet.example"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def _invite(lab: Lab, **body: object) -> InvitationCreated:
    return await enrollment.create(lab.core, lab.admin, InvitationCreate.model_validate(body), URL)


async def _join(lab: Lab, token: str, secret: str = "tf_mine", address: str = "10.0.0.1") -> JoinReply:
    return await enrollment.join(lab.core, address, JoinRequest(token=token, secret_hash=_hash(secret), name="box"))


async def _states(lab: Lab) -> list[str]:
    return [each.state for each in await enrollment.list_(lab.core, lab.admin)]


async def test_a_token_is_exchanged_once_for_a_key_that_the_machine_made_up(lab: Lab) -> None:
    made = await _invite(lab)
    assert made.command == f"tunefleet join {URL} {made.token}"
    reply = await _join(lab, made.token)
    actor = await api_keys.authenticate(lab.core, "tf_mine")
    assert (actor.key_id, actor.role, actor.owner) == (reply.key_id, "worker", "admin")
    with pytest.raises(ConflictError, match="single-use token"):
        await _join(lab, made.token, "tf_thief")
    with pytest.raises(AuthError):
        await api_keys.authenticate(lab.core, "tf_thief")
    assert await _states(lab) == ["used"]


async def test_who_lost_the_answer_gets_it_again_also_when_the_token_is_too_old(lab: Lab) -> None:
    made = await _invite(lab, expires_s=60)
    first = await _join(lab, made.token)
    lab.clock.advance(3600)
    assert await _join(lab, made.token) == first
    await api_keys.revoke(lab.core, lab.admin, first.key_id)
    with pytest.raises(AuthError, match="was revoked"):
        await _join(lab, made.token)


async def test_of_many_who_come_at_once_with_one_token_one_gets_a_key(lab: Lab) -> None:
    made, before = await _invite(lab), len(await api_keys.list_(lab.core, lab.admin))
    came = [_join(lab, made.token, f"tf_{number}", f"10.0.0.{number}") for number in range(12)]
    outcomes = await asyncio.gather(*came, return_exceptions=True)
    assert sum(isinstance(each, JoinReply) for each in outcomes) == 1
    assert sum(isinstance(each, ConflictError) for each in outcomes) == 11
    assert len(await api_keys.list_(lab.core, lab.admin)) == before + 1


async def test_a_token_that_is_wrong_too_old_or_withdrawn_says_so(lab: Lab) -> None:
    old, withdrawn = await _invite(lab, expires_s=60), await _invite(lab)
    await enrollment.withdraw(lab.core, lab.admin, withdrawn.id)
    lab.clock.advance(61)
    for token, words in (("tfj_x", "is wrong"), (old.token, "has expired"), (withdrawn.token, "withdrawn")):
        with pytest.raises(AuthError, match=words):
            await _join(lab, token)
    assert sorted(await _states(lab)) == ["expired", "withdrawn"]


async def test_nobody_joins_a_project_that_rests(lab: Lab) -> None:
    boss = await member(lab, "red", role="admin")
    made = await enrollment.create(lab.core, boss, InvitationCreate(), URL)
    await projects.change(lab.core, lab.admin, "red", ProjectChange(archived=True))
    with pytest.raises(AuthError, match="Project red is archived"):
        await _join(lab, made.token)
    await projects.change(lab.core, lab.admin, "red", ProjectChange(archived=False))
    await _join(lab, made.token)
    assert (await api_keys.authenticate(lab.core, "tf_mine")).project == "red"


async def test_an_invitation_that_was_used_is_not_withdrawn(lab: Lab) -> None:
    made = await _invite(lab)
    reply = await _join(lab, made.token)
    with pytest.raises(ConflictError, match="has already joined") as refused:
        await enrollment.withdraw(lab.core, lab.admin, made.id)
    assert reply.key_id in str(refused.value.hint)
    with pytest.raises(NotFoundError):
        await enrollment.withdraw(lab.core, lab.admin, "inv-none")


async def test_only_admins_invite_list_and_withdraw(lab: Lab) -> None:
    for who in (lab.worker_key,):
        with pytest.raises(ForbiddenError):
            await enrollment.create(lab.core, who, InvitationCreate(), URL)
        with pytest.raises(ForbiddenError):
            await enrollment.list_(lab.core, who)
        with pytest.raises(ForbiddenError):
            await enrollment.withdraw(lab.core, who, "inv-1")


async def test_what_an_invitation_binds_holds_at_each_registration(lab: Lab) -> None:
    made = await _invite(lab, worker_id="gpu-3", tags=["lab"])
    reply = await _join(lab, made.token)
    assert (reply.worker_id, reply.tags, reply.owner) == ("gpu-3", ("lab",), "gpu-3")
    actor = await api_keys.authenticate(lab.core, "tf_mine")
    with pytest.raises(ForbiddenError, match="valid only for worker gpu-3"):
        await FakeWorker(lab, id="gpu-4", actor=actor).register()
    await FakeWorker(lab, id="gpu-3", actor=actor).register(capabilities=capabilities(tags=("secret-lab",)))
    view = await workers.get(lab.core, lab.admin, "gpu-3")
    assert view.capabilities.tags == ("lab",)


async def test_tokens_are_stored_as_hashes_and_guessing_is_slowed_down(lab: Lab) -> None:
    made = await _invite(lab)

    def stored(connection: Connection) -> str:
        return str(connection.execute(table.select()).all())

    assert made.token not in await lab.core.read(stored)
    for _ in range(BURST):
        with pytest.raises(AuthError):
            await _join(lab, "tfj_guess", address="10.9.9.9")
    with pytest.raises(TooManyError):
        await _join(lab, made.token, address="10.9.9.9")
    assert await _join(lab, made.token, address="10.8.8.8")
